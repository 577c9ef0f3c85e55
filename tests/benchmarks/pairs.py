"""Compares two checkouts by running the whole service from each of them, alternately.

`python -m tests.benchmarks.pairs TREE latency|events|throughput|ingestion [--store sqlite|postgresql] [--pairs 5]`

TREE is a checkout of another commit (`git worktree add TREE COMMIT`). It is compared with the checkout that runs this
module. Both services use this interpreter with its libraries, the same broker, and equal messages.

- `latency` measures until the event is committed, the run is queued, and the broker is advanced.
- `events` measures until the event is committed and the broker is advanced. There is no DAG.
- `throughput` reads a backlog, while the runs of a DAG take the events.
- `ingestion` reads a backlog, and there is no DAG.

A pair is a measurement of one checkout and, directly afterwards, of the other. The machine's speed changes within
minutes, but hardly within a pair. So the table has the medians of both checkouts, and the median of the pairs' ratios.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from tests.benchmarks.dags import that_does_nothing, that_starts_nothing
from tests.benchmarks.latency import publish_at, runs_of_events, times_of
from tests.benchmarks.load import WATCHERS, Paced
from tests.benchmarks.report import Figures, Report, Row, percentile
from tests.benchmarks.scene import Scene, Store, open_scene
from tests.benchmarks.service import Service
from tests.benchmarks.throughput import Case, Measured, new_backlog

_HERE: Final = Path(__file__).resolve().parents[2]
_WARM_UP: Final = 100

Sample = Mapping[str, float]
"""The figures of one turn of one side, by name."""


def main() -> int:
    arguments = _arguments()
    report = Report(arguments.json)
    with open_scene(report, [arguments.store], quick=False) as scene:
        for name, measure in _measurements(scene, arguments):
            before, after = _by_turns(measure, arguments.tree.resolve(), arguments.pairs)
            rows = tuple(_row(figure, before, after) for figure in before[0])
            title = f"{name}, {arguments.store}, {arguments.pairs} pairs"
            report.show(Figures("pairs", title, rows))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tree", type=Path, help="a checkout of the commit before")
    parser.add_argument("what", choices=["latency", "events", "throughput", "ingestion"])
    parser.add_argument("--store", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rate", type=int, default=100, help="messages/s, for latency and events")
    parser.add_argument(
        "--seconds", type=int, default=10, help="length of each turn, for latency and events"
    )
    parser.add_argument("--messages", type=int, default=200_000, help="size of the backlog")
    parser.add_argument("--json", type=Path, help="append the figures to this file")
    return parser.parse_args()


def _measurements(
    scene: Scene, arguments: argparse.Namespace
) -> Iterator[tuple[str, Callable[[Path], Sample]]]:
    if arguments.what in ("latency", "events"):
        rate, seconds = arguments.rate, arguments.seconds
        path = "" if arguments.what == "latency" else ", no DAG"
        title = f"{rate} messages/s for {seconds} s{path}"
        measure = _latency if arguments.what == "latency" else _events
        yield title, partial(measure, scene, arguments.store, rate, seconds)
        return
    messages = arguments.messages
    topic = new_backlog(scene, messages)
    for case in (
        Case("1 watcher", 1, "everything", messages),
        Case("20 watchers, 1 matches", WATCHERS, "one of 20", messages),
    ):
        has_dag = arguments.what == "throughput"
        title = f"A backlog of {messages:,}, {case.title}{'' if has_dag else ', no DAG'}"
        yield title, partial(_throughput, scene, arguments.store, topic, case, has_dag)


def _by_turns(
    measure: Callable[[Path], Sample], before: Path, pairs: int
) -> tuple[list[Sample], list[Sample]]:
    sides: dict[Path, list[Sample]] = {before: [], _HERE: []}
    for number in range(pairs):
        # The second side of a pair finds warm caches, so each side is second in every other pair.
        for tree in sorted(sides, key=lambda tree: (tree == _HERE) == (number % 2 == 0)):
            sides[tree].append(measure(tree))
    return sides[before], sides[_HERE]


def _row(figure: str, before: list[Sample], after: list[Sample]) -> Row:
    ratios = [b[figure] / a[figure] for a, b in zip(before, after, strict=True)]
    return {
        "": figure,
        "before": median(one[figure] for one in before),
        "after": median(one[figure] for one in after),
        "ratio": median(ratios),
        "of the pairs": ", ".join(f"{ratio:.2f}" for ratio in ratios),
    }


def _latency(scene: Scene, store: Store, rate: int, seconds: int, tree: Path) -> Sample:
    topic = scene.new_topic()
    dag_file = that_does_nothing(topic, f"{topic}-group")
    with scene.service(dag_file, store, tree=tree) as service:
        paced, cpu = _publish(scene, service, topic, rate, seconds, service.wait_until_done)
        held_by = runs_of_events(service.records)
        stamps = service.stop()
    return _sample(times_of(paced, stamps, held_by), cpu)


def _events(scene: Scene, store: Store, rate: int, seconds: int, tree: Path) -> Sample:
    topic = scene.new_topic()
    dag_file = that_starts_nothing(topic, f"{topic}-group")
    with scene.service(dag_file, store, tree=tree) as service:
        wait_for = partial(_wait_until_recorded, service)
        paced, cpu = _publish(scene, service, topic, rate, seconds, wait_for)
        stamps = service.stop()
    return _sample(times_of(paced, stamps, None), cpu)


def _wait_until_recorded(service: Service, events: int, *, within_s: float) -> None:
    service.wait_until(
        lambda: service.ask("SELECT count(*) FROM asset_event") == events,
        within_s=within_s,
        what=f"{events:,} events",
        every_s=0.5,
    )


def _publish(
    scene: Scene,
    service: Service,
    topic: str,
    rate: int,
    seconds: int,
    wait_for: Callable[..., object],
) -> tuple[Paced, float]:
    """Start the service and publish; return the stream, and the processor seconds for each message."""
    service.start("events")
    service.wait_for_watchers(1)
    publish_at(scene, topic, rate=50, seconds=_WARM_UP // 50, first=0)
    wait_for(_WARM_UP, within_s=120)
    cpu = service.cpu_seconds()
    paced = publish_at(scene, topic, rate=rate, seconds=seconds, first=_WARM_UP)
    cpu = service.cpu_seconds() - cpu
    wait_for(_WARM_UP + len(paced.messages), within_s=120)
    return paced, cpu / len(paced.messages)


def _sample(times: Mapping[str, Sequence[float]], cpu: float) -> Sample:
    shown = {
        f"until {what}, ms, p{percent}": percentile(took, percent)
        for what, took in times.items()
        for percent in (50, 99)
    }
    return {**shown, "processor time, ms/message": cpu * 1e3}


def _throughput(
    scene: Scene, store: Store, topic: str, case: Case, has_dag: bool, tree: Path
) -> Sample:
    group = scene.new_folder("group").name
    make = that_does_nothing if has_dag else that_starts_nothing
    dag_file = make(topic, group, watchers=case.watchers, matching=case.matching)
    with scene.service(dag_file, store, tree=tree) as service:
        service.start("flushes")
        service.wait_for_watchers(case.watchers)
        cpu = service.cpu_seconds()
        if has_dag:
            service.wait_until_done(case.rows, within_s=600)
        else:
            _wait_until_recorded(service, case.rows, within_s=600)
        cpu = service.cpu_seconds() - cpu
        stamps = service.stop()
    measured = Measured.of(stamps, case)
    return {
        "messages/s": measured.messages,
        "processor time, µs/message": cpu * 1e6 / case.messages,
    }


if __name__ == "__main__":
    sys.exit(main())
