"""Measures how fast a backlog becomes durable asset events, and compares the service with its parts alone.

The whole service runs, with a DAG whose runs use the events and end immediately. The measurement lasts from the first
group commit to the last. The service and its parts are measured in turn, because a machine's speed changes within
minutes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median_low
from typing import Any, Final

import anyio

from tests.benchmarks.dags import Matching, that_does_nothing
from tests.benchmarks.load import WATCHERS, publish_backlog
from tests.benchmarks.parts import Limits, measure_limits
from tests.benchmarks.report import Figures, Row
from tests.benchmarks.scene import Scene, Store

_NOTE: Final = (
    "per second; aims: over 10,000 persisted messages/s, and at least half of what the parts alone can do. "
    "`of series` is the service's rows/s divided by the rows/s of one loop that consumes, decodes, "
    "inserts and commits. `of parts` divides by raw consuming and then inserting with the driver's `executemany`, with "
    "nothing in between. `of parts, ours` divides by raw consuming and our own bulk statements. Each round measures "
    "the service and then the parts. The row shows the round with the median `of parts`."
)
_ROUNDS: Final = 3


@dataclass(frozen=True, slots=True)
class Case:
    """A case: the watchers that read the backlog, and the messages that each accepts."""

    title: str
    watchers: int
    matching: Matching
    messages: int

    @property
    def rows_per_message(self) -> int:
        return 1 if self.watchers == 1 or self.matching == "one of 20" else self.watchers

    @property
    def rows(self) -> int:
        return self.messages * self.rows_per_message


def measure(scene: Scene) -> Figures:
    many, few = (4_000, 400) if scene.quick else (200_000, 10_000)
    backlog = new_backlog(scene, many)
    small = new_backlog(scene, few)
    cases = (
        (Case("1 watcher", 1, "everything", many), backlog),
        (Case("20 watchers, 1 matches", WATCHERS, "one of 20", many), backlog),
        (Case("20 watchers, all match", WATCHERS, "everything", few), small),
    )
    rows = [
        _middle([_measure(scene, store, case, topic) for _ in range(1 if scene.quick else _ROUNDS)])
        for store in scene.stores
        for case, topic in cases
    ]
    title = (
        f"Throughput: a backlog of {many:,} messages over 8 partitions ({few:,} where all match)"
    )
    return Figures("throughput", title, tuple(rows), _NOTE)


def new_backlog(scene: Scene, messages: int) -> str:
    """Publish this number of messages; return their topic."""
    topic = scene.new_topic()
    scene.report.say(f"publishing {messages:,} messages")
    anyio.run(
        publish_backlog,
        scene.kafka.bootstrap_servers,
        topic,
        messages,
        backend_options={"use_uvloop": True},
    )
    return topic


def _measure(scene: Scene, store: Store, case: Case, topic: str) -> Row:
    group = scene.new_folder("group").name
    dag_file = that_does_nothing(topic, group, watchers=case.watchers, matching=case.matching)
    with scene.service(dag_file, store) as service:
        service.start("flushes")
        service.wait_for_watchers(case.watchers)
        cpu = service.cpu_seconds()
        runs = service.wait_until_done(case.rows, within_s=600)
        cpu = service.cpu_seconds() - cpu
        stamps = service.stop()
    assert scene.kafka.committed_offsets(group, topic) == scene.kafka.end_offsets(topic)
    measured = Measured.of(stamps, case)
    scene.report.say(f"{store}, {case.title}: {measured.rows:,.0f} rows/s; now the parts alone")
    limits = anyio.run(
        partial(
            measure_limits,
            scene.kafka.bootstrap_servers,
            topic,
            (scene.new_database(store), scene.new_database(store)),
            messages=case.messages,
            watchers=case.watchers,
            rows_per_message=case.rows_per_message,
        ),
        backend_options={"use_uvloop": True},
    )
    return _row(store, case, measured, limits, runs, cpu)


def _middle(rounds: Sequence[Row]) -> Row:
    """Return the row of the round with the median `of parts`, with a further column: `of parts` of each round."""
    of_parts = [row["of parts"] for row in rounds]
    row: Row = {}
    for name, value in rounds[of_parts.index(median_low(of_parts))].items():
        row[name] = value
        if name == "of parts":
            row["in each round"] = ", ".join(f"{one:.2f}" for one in of_parts)
    return row


@dataclass(frozen=True, slots=True)
class Measured:
    """The service's rates per second: of committed `messages` and `rows`, and of messages `advanced` at the broker.
    `flushes` is the number of group commits."""

    messages: float
    rows: float
    advanced: float
    flushes: int

    @classmethod
    def of(cls, stamps: Mapping[str, Any], case: Case) -> Measured:
        flushes: Sequence[Sequence[int]] = stamps["flushes"]
        began, first_events, _ = flushes[0]
        ended = flushes[-1][0]
        events = sum(flush[1] for flush in flushes) - first_events
        seconds = (ended - began) / 1e9
        rate = events / seconds if seconds else float("nan")
        until_advanced = (max(stamp[2] for stamp in stamps["advanced"]) - began) / 1e9
        # If all watchers match, a message becomes an event for each of them.
        return cls(rate / case.rows_per_message, rate, case.messages / until_advanced, len(flushes))


def _row(
    store: Store, case: Case, measured: Measured, limits: Limits, runs: int, cpu: float
) -> Row:
    # The limit: consume each message, then insert its rows, with no work in between. A real program is slower.
    consuming = 1 / (limits.consumed * case.rows_per_message)
    bare = 1 / (consuming + 1 / limits.inserted_rows)
    by_driver = 1 / (consuming + 1 / limits.driver_rows)
    return {
        "store": store,
        "case": case.title,
        "messages": case.messages,
        "persisted msg/s": measured.messages,
        "rows/s": measured.rows,
        "advanced msg/s": measured.advanced,
        "raw consume msg/s": limits.consumed,
        "executemany rows/s": limits.driver_rows,
        "our insert rows/s": limits.inserted_rows,
        "series rows/s": limits.series_rows,
        "of series": measured.rows / limits.series_rows,
        "of parts": measured.rows / by_driver,
        "of parts, ours": measured.rows / bare,
        "CPU µs/row": cpu * 1e6 / case.rows,
        "flushes": measured.flushes,
        "runs": runs,
    }
