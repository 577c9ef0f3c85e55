"""The steps of the demo: publish the backlog, wait for its runs, then publish the last messages live."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import anyio
from anyio import to_thread

from triggerer.demo.broker import MockBroker
from triggerer.demo.data import FLIGHTS, WEATHER, Dataset, Outgoing
from triggerer.demo.progress import awaited, failed_runs, is_idle, waiting_for_join, watched_events
from triggerer.errors import TriggererError
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups.signals import Signal
from triggerer.store.listing.counts import Counts, count_all

LIVE_STEPS: Final = 5
_SLICE: Final = 500
# While more than this number of messages have no asset event, the demo publishes nothing. The broker keeps only the
# newest 5 MB of a partition, and a compressed message takes less than 100 bytes. So no message is deleted before it is
# read.
MAX_WITHOUT_EVENT: Final = 50_000
_LOOK_EVERY: Final = timedelta(milliseconds=250)
# After this time, the demo publishes all remaining live messages together, except the last pair. So even on a slow
# machine, the demo should end within two minutes.
_LIVE_UNTIL_S: Final = 80.0
STALLED_S: Final = 180.0
"""The demo gives up if no count changes for this time. Even on a busy machine, Spark's start takes less."""


@dataclass(slots=True)
class Flow:
    """Drives the demo. Its attributes show the progress; only the task of `run` writes them."""

    broker: MockBroker
    dataset: Dataset
    database: Database
    stage: str = "starting"
    """The present part of the demo, as a text for people."""
    awaited: str | None = None
    """The condition for which the present part waits, if any."""
    counts: Counts = field(default_factory=Counts)
    began: float = field(default_factory=time.monotonic)
    bulk_seconds: float | None = None
    """Seconds from publishing the first message until all messages of the backlog had durable asset events."""
    _changed_at: float = field(default_factory=time.monotonic)
    live_from: float | None = None
    """The Unix time from which all messages of the backlog had durable asset events; None until then. Later messages do
    not wait behind a backlog, so their latencies are reported separately."""
    _live: list[tuple[Outgoing, Outgoing]] = field(default_factory=list)

    @property
    def published(self) -> int:
        return self.broker.delivered

    @property
    def reserved(self) -> int:
        """The number of messages that wait for the live part."""
        return 2 * len(self._live)

    @property
    def status(self) -> str:
        """The stage and the awaited condition, on one line."""
        return self.stage if self.awaited is None else f"{self.stage}: {self.awaited}"

    @property
    def without_event(self) -> int:
        """The number of published messages without an asset event."""
        return max(0, self.published - watched_events(self.counts))

    async def run(self) -> None:
        """Publish all messages, and return when successful runs have processed them.

        Raises:
            TriggererError: A DAG file is broken, a run failed, nothing has moved for `STALLED_S`, or the broker
                refused a message.
        Cancellation: Takes effect between two slices of messages. Published messages stay published.
        """
        backlog, self._live = split_live(self.dataset.messages, LIVE_STEPS)
        self.stage = "publishing at full speed"
        began = time.monotonic()
        await self._publish(backlog)
        self.stage = "backlog"
        await self._until(lambda: watched_events(self.counts) >= len(backlog))
        self.bulk_seconds = time.monotonic() - began
        await self._until(lambda: is_idle(self.counts))
        self.live_from = time.time()
        while self._live:
            if time.monotonic() - self.began > _LIVE_UNTIL_S and len(self._live) > 1:
                # The machine is slow, so publish all pairs except the last at once. The last pair goes through
                # `_publish_pair`, which orders its messages so that no event is left waiting.
                rest, self._live = self._live[:-1], self._live[-1:]
                await self._publish([message for pair in rest for message in pair])
                await self._until(lambda: watched_events(self.counts) >= self.published)
                await self._until(lambda: is_idle(self.counts))
                self.live_from = time.time()
            pair = self._live.pop(0)
            self.stage = f"live, {LIVE_STEPS - len(self._live)} of {LIVE_STEPS}"
            await self._publish_pair(pair)
        self.stage = "done"

    async def _publish(self, messages: Sequence[Outgoing]) -> None:
        for start in range(0, len(messages), _SLICE):
            while self.without_event > MAX_WITHOUT_EVENT:
                await self._look()
            # In a thread, because librdkafka may block, and the service uses this event loop.
            await to_thread.run_sync(self._publish_slice, messages[start : start + _SLICE])
            if start % (_SLICE * 20) == 0:
                self.counts = await self._read()
        await to_thread.run_sync(self.broker.flush, 10.0)

    def _publish_slice(self, messages: Sequence[Outgoing]) -> None:
        for message in messages:
            self.broker.publish(*message)
        self.broker.serve()

    async def _publish_pair(self, pair: tuple[Outgoing, Outgoing]) -> None:
        # A pair is a flight and a weather report. A run is created as soon as a flight event and a
        # weather event wait. If a weather event waits already, publish the report first. Otherwise
        # the flight would start the run with the older weather event, and the event of the report
        # would be left waiting.
        flight, report = pair
        first, second = (
            (report, flight) if waiting_for_join(self.counts, "weather") else (flight, report)
        )
        for message in (first, second):
            await self._publish([message])
            published = self.published
            await self._until(lambda: watched_events(self.counts) >= published)  # noqa: B023
        await self._until(lambda: is_idle(self.counts))

    async def _until(self, reached: Callable[[], bool]) -> None:
        """Return when the counts in the store satisfy `reached`."""
        with self.database.wakeups.subscribe(
            Signal.EVENTS_QUEUED, Signal.RUNS_QUEUED, Signal.RUNS_ENDED
        ) as commits:
            while True:
                self.counts = await self._read()
                if reached():
                    self.awaited = None
                    return
                self.awaited = awaited(self.counts, self.published)
                # There may be thousands of commits per second. Querying after each one would slow them down.
                await commits.wait(timedelta(seconds=1))
                await anyio.sleep(_LOOK_EVERY.total_seconds())

    async def _look(self) -> None:
        self.counts = await self._read()
        await anyio.sleep(_LOOK_EVERY.total_seconds())

    async def _read(self) -> Counts:
        async with self.database.reading() as session:
            counts = await count_all(session)
        for error in counts.file_errors:
            raise TriggererError(
                f"a DAG file of the demo is broken: {error['file']}:{error['line']}: "
                f"{error['reason']}"
            )
        if failed_runs(counts):
            raise TriggererError(
                "a run of the demo failed",
                hint="triggerer runs list --state failed shows the error",
            )
        now = time.monotonic()
        if counts != self.counts:
            self._changed_at = now
        elif now - self._changed_at > STALLED_S:
            raise TriggererError(
                f"nothing has moved for {STALLED_S:.0f} s in the demo ({self.status})",
                hint="see service.log in the demo's folder",
            )
        return counts


def split_live(
    messages: Sequence[Outgoing], steps: int
) -> tuple[list[Outgoing], list[tuple[Outgoing, Outgoing]]]:
    """Split the messages: return the messages to publish at full speed, and `steps` pairs to publish live, one by one.

    A pair is a flight and a weather report, from the end of the data set.
    """
    flights = [message for message in messages if message.topic == FLIGHTS][-steps:]
    reports = [message for message in messages if message.topic == WEATHER][-steps:]
    reserved = {id(message) for message in (*flights, *reports)}
    backlog = [message for message in messages if id(message) not in reserved]
    return backlog, list(zip(flights, reports, strict=True))
