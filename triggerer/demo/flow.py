"""What the demo does, step by step: publish, wait until all is through, publish the last hours live."""

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
# At most so many messages that are not yet asset events, so that the broker's 5 MB for each
# partition hold them: half of them may be in one partition, and gzip makes 350 bytes less than 100.
MAX_LAG: Final = 50_000
_LOOK_EVERY: Final = timedelta(milliseconds=250)
# The demo is to be over within two minutes, also where a step of the live part takes ten seconds.
_LIVE_UNTIL_S: Final = 80.0
STALLED_S: Final = 180.0
"""Longer than Spark takes to start, or a run over a whole backlog, on a busy machine."""


@dataclass(slots=True)
class Flow:
    """Drives the demo and shows, in plain attributes, how far it is. One task writes them."""

    broker: MockBroker
    dataset: Dataset
    database: Database
    stage: str = "starting"
    """Which part of the demo this is."""
    awaited: str | None = None
    """What that part waits for."""
    counts: Counts = field(default_factory=Counts)
    began: float = field(default_factory=time.monotonic)
    bulk_seconds: float | None = None
    """From the first message published to the last of the backlog durable as an asset event."""
    _changed_at: float = field(default_factory=time.monotonic)
    live_from: float | None = None
    """When the live part began, as a Unix time: messages from then on met no backlog."""
    _live: list[tuple[Outgoing, Outgoing]] = field(default_factory=list)

    @property
    def published(self) -> int:
        return self.broker.delivered

    @property
    def held_back(self) -> int:
        """Messages that are kept for the live part."""
        return 2 * len(self._live)

    @property
    def status(self) -> str:
        """What the demo does or waits for, on a line."""
        return self.stage if self.awaited is None else f"{self.stage}: {self.awaited}"

    @property
    def lag(self) -> int:
        """Messages that the broker has and that are not asset events yet."""
        return max(0, self.published - watched_events(self.counts))

    async def run(self) -> None:
        """Publish everything, and return when every message has gone all its way.

        Raises:
            TriggererError: A DAG file is broken, a watcher or a run failed, or the broker refused.
        Cancellation: Between two slices of messages; what was published stays published.
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
                # A slow machine: what was measured so far has to do. The last pair is left, since
                # it is what leaves nothing waiting.
                rest, self._live = self._live[:-1], self._live[-1:]
                await self._publish([message for pair in rest for message in pair])
                await self._until(lambda: watched_events(self.counts) >= self.published)
                await self._until(lambda: is_idle(self.counts))
            pair = self._live.pop(0)
            self.stage = f"live, {LIVE_STEPS - len(self._live)} of {LIVE_STEPS}"
            await self._publish_pair(pair)
        self.stage = "done"

    async def _publish(self, messages: Sequence[Outgoing]) -> None:
        for start in range(0, len(messages), _SLICE):
            while self.lag > MAX_LAG:
                await self._look()
            # In a thread: the service shares this event loop, and librdkafka may block.
            await to_thread.run_sync(self._publish_slice, messages[start : start + _SLICE])
            if start % (_SLICE * 20) == 0:
                self.counts = await self._read()
        await to_thread.run_sync(self.broker.flush, 10.0)

    def _publish_slice(self, messages: Sequence[Outgoing]) -> None:
        for message in messages:
            self.broker.publish(*message)
        self.broker.serve()

    async def _publish_pair(self, pair: tuple[Outgoing, Outgoing]) -> None:
        # What waited alone on one side takes the first of the other with it into a run. So the side
        # that has something waiting goes last but for one: then neither is left without the other.
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
        """Return when what the store shows satisfies `reached`."""
        with self.database.wakeups.subscribe(
            Signal.EVENTS_QUEUED, Signal.RUNS_QUEUED, Signal.RUNS_ENDED
        ) as commits:
            while True:
                self.counts = await self._read()
                if reached():
                    self.awaited = None
                    return
                self.awaited = awaited(self.counts, self.published)
                # A commit may come thousands of times a second; looking that often would slow them.
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
                "a run of the demo failed", hint="triggerer runs list --state failed says why"
            )
        now = time.monotonic()
        if counts != self.counts:
            self._changed_at = now
        elif now - self._changed_at > STALLED_S:
            raise TriggererError(
                f"nothing has moved for {STALLED_S:.0f} s in the demo ({self.status})",
                hint="service.log in the demo's folder says what the service was doing",
            )
        return counts


def split_live(
    messages: Sequence[Outgoing], steps: int
) -> tuple[list[Outgoing], list[tuple[Outgoing, Outgoing]]]:
    """Return the backlog, and the last flights and weather reports, which are published in pairs."""
    flights = [message for message in messages if message.topic == FLIGHTS][-steps:]
    reports = [message for message in messages if message.topic == WEATHER][-steps:]
    held = {id(message) for message in (*flights, *reports)}
    backlog = [message for message in messages if id(message) not in held]
    return backlog, list(zip(flights, reports, strict=True))
