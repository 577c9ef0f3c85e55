"""Checks the events of the watchers against the expected events, and measures their latencies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from tests.acceptance.records import Records
from tests.benchmarks.falling_behind.durable import Durable
from tests.benchmarks.falling_behind.sick_dags import TAKES_ONE_IN
from tests.benchmarks.falling_behind.stamped_load import Stretch
from tests.benchmarks.report import percentile

_EVENTS: Final = (
    "SELECT id, extra FROM asset_event WHERE asset_id = (SELECT id FROM asset WHERE name = '{name}')"
    " ORDER BY id"
)
_COUNTS: Final = (
    "SELECT a.name, (SELECT count(*) FROM asset_event e WHERE e.asset_id = a.id) FROM asset a"
)


@dataclass(frozen=True, slots=True)
class Event:
    """One asset event of a watcher."""

    id: int
    number: int
    """The number of the event's message."""
    sent_at: int
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """The differences between a watcher's events and the expected events."""

    expected: int
    missing: int
    unexpected: int
    doubled: int
    out_of_order: int
    """Events whose message precedes the previous event's message in the same partition."""

    @property
    def is_right(self) -> bool:
        return not (self.missing or self.unexpected or self.doubled or self.out_of_order)


def counts(records: Records) -> dict[str, int]:
    """Return the number of events of each asset, by name."""
    return {name: int(count) for name, count in records.rows(_COUNTS)}


def events_of(records: Records, name: str) -> list[Event]:
    """The events of an asset, in the order of their ids."""
    found = []
    for event_id, content in records.rows(_EVENTS.format(name=name)):
        extra = orjson.loads(content)
        found.append(Event(event_id, extra["n"], extra["at"], extra["partition"], extra["offset"]))
    return found


def expected_of(name: str, stretches: Sequence[Stretch], sick: Sequence[Stretch]) -> set[int]:
    """Return the numbers of the messages that a watcher should accept: one message in ten.

    A healthy watcher accepts messages of all `stretches`, a sick watcher only messages of the stretches in `sick`.
    """
    kind, _, number = name.partition("-")
    of, digit = (stretches, int(number) % TAKES_ONE_IN) if kind == "well" else (sick, 0)
    return {n for one in of for n in range(one.first, one.end) if n % TAKES_ONE_IN == digit}


def judge(events: Sequence[Event], expected: set[int]) -> Verdict:
    numbers = {event.number for event in events}
    newest: dict[int, int] = {}
    out_of_order = 0
    for event in events:
        before = newest.get(event.partition, -1)
        out_of_order += event.offset < before
        newest[event.partition] = max(before, event.offset)
    return Verdict(
        expected=len(expected),
        missing=len(expected - numbers),
        unexpected=len(numbers - expected),
        doubled=len(events) - len({(event.partition, event.offset) for event in events}),
        out_of_order=out_of_order,
    )


def latencies_ms(events: Sequence[Event], stretch: Stretch, durable: Durable) -> list[float]:
    """Return the latencies of a stretch's events, unsorted, from the call of the Kafka client to the stored event."""
    return [
        (durable.at(event.id) - event.sent_at) / 1e6
        for event in events
        if stretch.first <= event.number < stretch.end
    ]


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Return the median, the 99th percentile and the maximum of latencies in ms."""
    ordered = sorted(values)
    return {"p50 ms": percentile(ordered, 50), "p99 ms": percentile(ordered, 99)} | {
        "worst ms": percentile(ordered, 100)
    }
