"""Measures how four sick watchers slow down the sixteen others of their topic. Checks that no watcher misses a message.

    python -m tests.benchmarks.falling_behind.sick_watchers --store sqlite|postgresql [--seconds 600] [--rate 1000]
        [--without-sick] [--healthy 16] [--sick raising,hanging,slow,absent] [--kills N] [--takeovers N]

The benchmark uses a real Kafka, and `triggerer standalone` with its default settings. Each of the sixteen healthy
watchers takes one message in ten. The sick watchers are:

- `raising`: its filter raises on every message.
- `hanging`: its filter hangs.
- `absent`: its trigger's constructor raises, so the service cannot host it.
- `slow`: its filter needs 50 ms for each message.

One run has three phases:

1. *baseline*: all watchers are well. No message matches the four watchers that become sick later.
2. *sick*: these four are sick. With `--kills` or `--takeovers`, the service is killed at random
   moments.
3. *mended*: the four are well again and catch up, while new messages arrive. Then the benchmark stops
   sending, and waits until all watchers have caught up.

At the end each watcher must have one event for each of its messages. In each partition the events' ids must have the
order of the messages.

The benchmark measures the latencies of the healthy watchers. A latency begins when the Kafka client gets the message,
and ends when another process, which reads the store every 5 ms, sees the asset event.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import anyio

from tests.acceptance.instance import wait_until
from tests.benchmarks.falling_behind.durable import Durable, reader_of
from tests.benchmarks.falling_behind.sick_dags import SICK, DagFiles
from tests.benchmarks.falling_behind.sick_events import (
    counts,
    events_of,
    expected_of,
    judge,
    latencies_ms,
    quantiles,
)
from tests.benchmarks.falling_behind.sick_service import Services
from tests.benchmarks.falling_behind.stamped_load import Stretch, publish_stamped
from tests.benchmarks.report import Figures, Report, Row, surroundings
from tests.benchmarks.scene import Scene, open_scene

PARTITIONS: Final = 8
_WARM_UP_S: Final = 5.0
_SETTLED_S: Final = 3_600.0
"""The seconds that the sick watchers may take to catch up."""


def main() -> int:
    arguments = _arguments()
    report = Report(arguments.json)
    report.say(f"{surroundings()}")
    with open_scene(report, [arguments.store], quick=False) as scene, ExitStack() as stack:
        run = _Run(scene, arguments, stack)
        try:
            return 0 if run.measure() else 1
        finally:
            run.services.end()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--seconds", type=float, default=600, help="length of the sick phase")
    parser.add_argument(
        "--baseline-seconds", type=float, default=120, help="length of the first phase"
    )
    parser.add_argument("--mended-seconds", type=float, default=60, help="length of the last phase")
    parser.add_argument("--rate", type=float, default=1_000, help="messages/s")
    parser.add_argument(
        "--healthy", type=int, default=16, help="number of watchers that are always well"
    )
    parser.add_argument("--sick", default=",".join(SICK), help="kinds of sick watchers")
    parser.add_argument(
        "--without-sick",
        dest="sick",
        action="store_const",
        const="",
        help="no sick watchers, as a control",
    )
    parser.add_argument(
        "--kills", type=int, default=0, help="number of SIGKILLs with a restart in the sick phase"
    )
    parser.add_argument(
        "--takeovers", type=int, default=0, help="number of takeovers between two instances"
    )
    parser.add_argument(
        "--seed", type=int, default=time.time_ns() % 2**32, help="seed of the random moments"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="append figures as JSON lines")
    arguments = parser.parse_args()
    arguments.sick = [name for name in arguments.sick.split(",") if name]
    if unknown := set(arguments.sick).difference(SICK):
        parser.error(f"--sick: {', '.join(sorted(unknown))} is none of {', '.join(SICK)}")
    if arguments.takeovers and arguments.store != "postgresql":
        parser.error(
            "--takeovers needs --store postgresql, because only one service can use a SQLite store"
        )
    return arguments


class _Run:
    """One run: the services, the DAG files and the messages that are sent."""

    def __init__(self, scene: Scene, arguments: argparse.Namespace, stack: ExitStack) -> None:
        self._report = scene.report
        self._arguments = arguments
        self._topic = "sick-watchers"
        self._bootstrap = scene.kafka.bootstrap_servers
        scene.kafka.create_topic(self._topic, PARTITIONS)
        folder = scene.new_folder("sick")
        self._healthy = [f"well-{number}" for number in range(arguments.healthy)]
        self._dags = DagFiles(folder, self._topic, healthy=arguments.healthy, sick=arguments.sick)
        self._url = scene.new_database(arguments.store)
        self.services = Services(
            folder,
            count=2 if arguments.takeovers else 1,
            dags_folder=self._dags.folder,
            url=self._url,
            bootstrap=self._bootstrap,
        )
        self._seen = folder / "seen"
        self._random = random.Random(arguments.seed)
        self._stack = stack
        self._publisher = stack.enter_context(ThreadPoolExecutor(1))
        self._stretches: dict[str, Stretch] = {}
        self._settled_s: dict[str, float] = {}
        """The seconds from the mending until a watcher had all its events, by watcher."""

    def measure(self) -> bool:
        """Run all phases and show their figures; return True if each watcher has exactly its events."""
        arguments = self._arguments
        self.services.start()
        self._wait_for_watchers()
        durable = self._stack.enter_context(reader_of(self._url, self._seen))
        self._send("warm-up", _WARM_UP_S)
        self._send("baseline", arguments.baseline_seconds)
        self._fall_sick()
        self._send("sick", arguments.seconds, is_sick=True, meanwhile=self._disturb)
        self._dags.mend()
        mended_at = time.monotonic()
        self._send("mended", arguments.mended_seconds, is_sick=True)
        self._wait_until_settled(mended_at)
        self.services.stop()
        durable.load()
        self._show_latencies(durable)
        return self._show_verdicts()

    def _wait_for_watchers(self) -> None:
        self.services.wait_until(
            f"SELECT count(*) = {len(self._dags.names)} FROM watcher WHERE state = 'running'",
            within_s=60,
            what="all watchers run",
        )

    def _fall_sick(self) -> None:
        self._dags.fall_sick()
        if "absent" in self._arguments.sick:
            self.services.wait_until(
                "SELECT w.state = 'failing' FROM watcher w JOIN asset a ON a.id = w.asset_id"
                " WHERE a.name = 'absent'",
                within_s=60,
                what="the watcher `absent` is failing",
            )

    def _send(
        self,
        phase: str,
        seconds: float,
        *,
        is_sick: bool = False,
        meanwhile: Callable[[Future[Stretch], float], None] | None = None,
    ) -> None:
        before = list(self._stretches.values())
        publish = partial(
            publish_stamped,
            self._bootstrap,
            self._topic,
            partitions=PARTITIONS,
            rate=self._arguments.rate,
            seconds=seconds,
            first=before[-1].end if before else 0,
            is_sick=is_sick,
        )
        self._report.say(f"{phase}: {seconds:g} s")
        future = self._publisher.submit(anyio.run, publish)
        if meanwhile is not None:
            meanwhile(future, seconds)
        self._stretches[phase] = future.result()

    def _disturb(self, publishing: Future[Stretch], seconds: float) -> None:
        """Do the kills and takeovers at random moments. Each starts only after the one before is over."""
        kills, takeovers = self._arguments.kills, self._arguments.takeovers
        disturbances = [self.services.kill_and_restart] * kills
        disturbances += [self.services.take_over] * takeovers
        self._random.shuffle(disturbances)
        moments = sorted(self._random.uniform(0, seconds) for _ in disturbances)
        began = time.monotonic()
        for moment, disturb in zip(moments, disturbances, strict=True):
            time.sleep(max(0.0, began + moment - time.monotonic()))
            if publishing.done():
                self._report.say(
                    f"too late for the disturbance at {moment:.1f} s: all messages are sent"
                )
                continue
            self._report.say(f"{disturb.__name__} at {time.monotonic() - began:.1f} s")
            disturb()

    def _wait_until_settled(self, mended_at: float) -> None:
        """Wait until each watcher has as many events as it should have, and no watcher is behind."""
        expected = {name: len(self._expected(name)) for name in self._dags.names}

        def all_have_all() -> bool:
            found = counts(self.services.records)
            for name, count in expected.items():
                if name not in self._settled_s and found.get(name, 0) >= count:
                    self._settled_s[name] = time.monotonic() - mended_at
            return len(self._settled_s) == len(expected)

        wait_until(
            all_have_all,
            within_s=_SETTLED_S,
            what="each watcher has all its events",
            of=self.services.instances[0],
            every_s=0.5,
        )
        self.services.wait_until(
            "SELECT count(*) = 0 FROM watcher_position", within_s=60, what="no watcher is behind"
        )
        self._wait_for_watchers()

    def _expected(self, name: str) -> set[int]:
        sick = [self._stretches[phase] for phase in ("sick", "mended")]
        return expected_of(name, list(self._stretches.values()), sick)

    def _show_latencies(self, durable: Durable) -> None:
        events = [
            event for name in self._healthy for event in events_of(self.services.records, name)
        ]
        rows: list[Row] = []
        for phase in ("baseline", "sick", "mended"):
            stretch = self._stretches[phase]
            found = latencies_ms(events, stretch, durable)
            figures = quantiles(found)
            baseline = rows[0] if rows else figures
            rows.append(
                {
                    "store": self._arguments.store,
                    "phase": phase,
                    "seconds": stretch.seconds,
                    "messages": stretch.end - stretch.first,
                    "events": len(found),
                    **figures,
                    "p50 ratio": figures["p50 ms"] / baseline["p50 ms"],
                    "p99 ratio": figures["p99 ms"] / baseline["p99 ms"],
                    "generator\nlate ms": stretch.latest_s * 1_000,
                }
            )
        self._report.show(
            Figures("sick-watchers", "The healthy watchers", tuple(rows), self._note())
        )

    def _show_verdicts(self) -> bool:
        rows: list[Row] = []
        is_right = True
        for name in self._dags.names:
            verdict = judge(events_of(self.services.records, name), self._expected(name))
            is_right &= verdict.is_right
            rows.append(
                {
                    "watcher": name,
                    "expected": verdict.expected,
                    "missing": verdict.missing,
                    "unexpected": verdict.unexpected,
                    "doubled": verdict.doubled,
                    "out of order": verdict.out_of_order,
                    "has all, s after mending": self._settled_s[name],
                }
            )
        # Show each sick watcher in its own row, and the healthy ones in one row of sums.
        healthy = len(self._healthy)
        shown = [*_summed(rows[:healthy]), *rows[healthy:]]
        title = "Each message once and in order: " + ("yes" if is_right else "NO")
        self._report.show(Figures("sick-watchers-verdict", title, tuple(shown), self._note()))
        return is_right

    def _note(self) -> str:
        arguments = self._arguments
        return (
            f"{arguments.rate:g} messages/s over {PARTITIONS} partitions; sick: "
            f"{', '.join(arguments.sick) or 'none'}; {arguments.kills} kills, "
            f"{arguments.takeovers} takeovers; seed {arguments.seed}"
        )


def _summed(rows: Sequence[Row]) -> Sequence[Row]:
    first, *others = rows
    summed = {name: value for name, value in first.items() if name != "watcher"}
    for row in others:
        for name in summed:
            summed[name] = (
                max(summed[name], row[name]) if "after" in name else summed[name] + row[name]
            )
    return [{"watcher": f"the {len(rows)} that are well", **summed}]


if __name__ == "__main__":
    sys.exit(main())
