"""Runs `triggerer standalone`, with methods replaced by versions that record the instants of their work.

The benchmarks run `python -m tests.benchmarks.stamped_service --config FILE --stamps FILE [--each events|flushes]`. All
instants are CLOCK_MONOTONIC in nanoseconds, a clock that all processes of a machine share. The stamps stay in memory
until the service has stopped, and are then written as JSON.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic_ns
from typing import Any

import orjson

from producers.kafka import KafkaSharedStreamProducer
from triggerer.abc import AdvanceItem
from triggerer.config import load_settings
from triggerer.observability.logging_setup import set_up_logging
from triggerer.scheduler import Scheduler
from triggerer.scheduler.plan import Plan
from triggerer.service import ALL_PARTS, run
from triggerer.store.events.event_batch import EventBatch
from triggerer.store.events.recorder import EventRecorder
from triggerer.streams.delivery.derived_event import DerivedEvent
from triggerer.streams.delivery.lane import Entry


@dataclass(slots=True)
class Stamps:
    """The recorded instants. Each `count_...` or `record_...` method replaces a method of the service."""

    committed: list[tuple[int, int, int]] = field(default_factory=list)
    """(partition, offset, instant) of each event, when its commit was confirmed."""
    queued: list[int] = field(default_factory=list)
    """The instant after the commit of each run, in the order of the runs. Runs of one transaction have one instant."""
    advanced: list[tuple[int, int, int]] = field(default_factory=list)
    """(partition, last offset, instant) of each advance, when it returned and the broker had the commit."""
    flushes: list[tuple[int, int, int]] = field(default_factory=list)
    """(instant, events in the commit, rows written so far) of each group commit."""

    def count_commits(self) -> None:
        settle = DerivedEvent.complete
        committed = self.committed

        def stamped(self: DerivedEvent, error: Exception | None) -> None:
            entry = self.entry
            if error is None and isinstance(entry, Entry):
                message = entry.payload
                committed.append((message.partition, message.offset, monotonic_ns()))
            settle(self, error)

        DerivedEvent.complete = stamped  # type: ignore[method-assign]

    def count_flushes(self) -> None:
        settle = EventRecorder._settle
        flushes = self.flushes

        def stamped(self: EventRecorder, part: EventBatch, **outcome: Any) -> None:
            flushes.append((monotonic_ns(), len(part), self.rows_written))
            settle(self, part, **outcome)

        EventRecorder._settle = stamped  # type: ignore[method-assign]

    def record_runs(self) -> None:
        """Record the instant for each run right after the transaction that created it."""
        done = Scheduler._done
        queued = self.queued

        def stamped(self: Scheduler, plan: Plan, by_clock: bool) -> None:
            queued.extend([monotonic_ns()] * plan.runs_created)
            done(self, plan, by_clock)

        Scheduler._done = stamped  # type: ignore[method-assign]

    def count_advances(self) -> None:
        advance = KafkaSharedStreamProducer.advance
        advanced = self.advanced

        async def stamped(self: KafkaSharedStreamProducer, batch: Sequence[AdvanceItem]) -> None:
            await advance(self, batch)
            message = batch[-1].broker_payload
            advanced.append((message.partition, message.offset, monotonic_ns()))

        KafkaSharedStreamProducer.advance = stamped  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--stamps", type=Path, required=True)
    parser.add_argument("--each", choices=["events", "flushes"], default="events")
    arguments = parser.parse_args()
    stamps = Stamps()
    stamps.record_runs()
    stamps.count_advances()
    if arguments.each == "events":
        stamps.count_commits()
    else:
        # At full speed, recording each event would distort the measurement.
        stamps.count_flushes()
    settings = load_settings(arguments.config)
    set_up_logging(settings.core)
    try:
        run(settings, ALL_PARTS)
    finally:
        noted = {
            "committed": stamps.committed,
            "queued": stamps.queued,
            "advanced": stamps.advanced,
            "flushes": stamps.flushes,
        }
        arguments.stamps.write_bytes(orjson.dumps(noted))


if __name__ == "__main__":
    main()
