"""Parts for benchmarks of the runtime alone: a log in memory, its watchers, and a store that stores no event."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, Final

import anyio
from anyio.lowlevel import checkpoint

from triggerer.abc import AdvanceItem, BaseEventTrigger, SharedStreamProducer, TriggerEvent
from triggerer.domain.events import EventSource, Fence, HasPayload, PendingEvent, WatcherRef
from triggerer.domain.watchers.lane_positions import (
    LanePosition,
    Position,
    PositionChange,
    ReplayEnd,
)
from triggerer.streams import TriggerSpec

LANES: Final = 8
_BATCH: Final = 500
"""After this number of messages, other tasks get a turn. The Kafka producer takes batches of this size by default."""
_FENCE: Final = Fence("stream", "benchmark", 1)


class Log:
    """A log of numbers, spread evenly over the lanes.

    The live watchers read the messages from `first` up to `end`. Watchers that catch up may also read earlier messages.

    Args:
        rate: Messages per second from `first` on. None: as fast as the live watchers read.
    """

    current: ClassVar[Log]

    def __init__(self, first: int, end: int, *, rate: float | None = None) -> None:
        self.first = first
        self.end = end
        self.rate = rate
        self.begun = 0.0
        """When the message `first` was due, by `time.perf_counter`."""
        self.reached = first
        """One more than the number of the last message that the group received."""
        self.readers = 0
        """The number of open calls of `read_lane`. `most_readers` is its maximum so far, and `readings` counts all
        calls."""
        self.most_readers = 0
        self.readings = 0
        self.read_beside = 0
        """The number of messages that the calls of `read_lane` have yielded."""
        self.taken: dict[int, int] = {}
        """The number of messages that each watcher's filter got, by watcher."""
        self.wanted: int | None = None
        self.done = anyio.Event()
        """Set by a benchmark, or once a filter got `wanted` messages."""
        Log.current = self

    def due(self, number: int) -> float:
        """Return the instant at which the group should get a message, by `time.perf_counter`."""
        assert self.rate is not None
        return self.begun + (number - self.first) / self.rate

    def mark_taken(self, watcher: int) -> None:
        taken = self.taken[watcher] = self.taken.get(watcher, 0) + 1
        if taken == self.wanted:
            self.done.set()


class LogProducer(SharedStreamProducer):
    """Reads `Log.current`. A message is its number."""

    def __init__(self) -> None:
        self._log = Log.current

    async def open_stream(self) -> AsyncIterator[tuple[int, int]]:
        log = self._log
        log.begun = time.perf_counter()
        for number in range(log.first, log.end):
            if log.rate is not None and (early := log.due(number) - time.perf_counter()) > 0:
                await anyio.sleep(early)
            elif number % _BATCH == 0:
                await checkpoint()
            log.reached = number + 1
            yield number, number
        await anyio.sleep_forever()

    async def read_lane(self, lane: Hashable, position: Position) -> AsyncIterator[tuple[int, int]]:
        log = self._log
        assert isinstance(lane, int)
        number = position[1] * LANES + lane
        log.readings += 1
        log.readers += 1
        log.most_readers = max(log.most_readers, log.readers)
        try:
            while True:
                # At the end of the log, wait as a consumer does that receives nothing new.
                await (checkpoint() if number < log.reached else anyio.sleep(0.05))
                for _ in range(_BATCH):
                    if number >= log.reached:
                        break
                    log.read_beside += 1
                    yield number, number
                    number += LANES
        finally:
            log.readers -= 1

    def get_advance_lane(self, broker_payload: int) -> Hashable:
        return broker_payload % LANES

    def get_position(self, broker_payload: int) -> Position:
        return ["log", broker_payload // LANES]

    async def find_positions(self, start: datetime | None) -> Mapping[Hashable, Position]:
        reached = 0 if start is None else self._log.reached
        return {lane: ["log", -((lane - reached) // LANES)] for lane in range(LANES)}

    def get_idempotency_key(self, broker_payload: int) -> str:
        return str(broker_payload)

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        pass


class LogTrigger(BaseEventTrigger):
    """Derives an event from one message in `one_in`."""

    def __init__(self, number: int, one_in: int) -> None:
        self.number = number
        self.one_in = one_in

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "benchmark.LogTrigger", {"number": self.number, "one_in": self.one_in}

    def shared_stream_key(self) -> Hashable:
        return "benchmark"

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return LogProducer()

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[int]
    ) -> AsyncIterator[TriggerEvent]:
        note, watcher, one_in = Log.current.mark_taken, self.number, self.one_in
        async for number in shared_stream:
            note(watcher)
            if number // LANES % one_in == 0:
                yield TriggerEvent(number)


def spec(number: int, *, one_in: int, behind_from: int | None = None) -> TriggerSpec:
    """Return the spec of a watcher.

    Args:
        behind_from: The offset in each lane at which the watcher's backlog begins. None: the watcher is live.
    """
    kwargs = {"number": number, "one_in": one_in}
    rows = (
        LanePosition(number, str(lane), ["log", behind_from], datetime.now(UTC))
        for lane in range(LANES if behind_from is not None else 0)
    )
    return TriggerSpec(
        name=f"watcher-{number}",
        make=partial(LogTrigger, **kwargs),
        kwargs=kwargs,
        source=EventSource((WatcherRef(number, number),), _FENCE),
        positions=tuple(rows),
    )


class Store:
    """Receives events and positions from the runtime, and stores only the positions.

    An event is reported as durable one turn of the event loop after it was submitted.

    Args:
        on_stored: Gets the watcher and the payload of each event once it is durable.
    """

    is_full = False

    def __init__(self, on_stored: Callable[[int, Any], None] | None = None) -> None:
        self.rows: dict[tuple[int, str], Position] = {}
        """The positions of the watchers that are behind, by watcher and lane."""
        self.events = 0
        self._on_stored = on_stored
        self._waiting: list[Callable[[], None]] = []

    def load(self, rows: Sequence[LanePosition]) -> None:
        """Add rows that exist before the start."""
        self.rows.update({(row.watcher_id, row.lane): row.position for row in rows})

    async def wait_for_room(self) -> None:
        raise AssertionError("this sink is never full")

    def submit_nowait(self, *given: Any) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._commit)
        self._waiting.append(
            partial(self._move, given[0]) if len(given) == 1 else partial(self._store, *given)
        )

    def end_replay_nowait(self, end: ReplayEnd) -> None:
        raise AssertionError("nothing starts a replay here")

    def _commit(self) -> None:
        waiting, self._waiting = self._waiting, []
        for perform in waiting:
            perform()

    def _move(self, change: PositionChange) -> None:
        if change.position is None:
            self.rows.pop((change.watcher_id, change.lane), None)
        else:
            self.rows[change.watcher_id, change.lane] = change.position
        change.on_done(None)

    def _store(
        self,
        event: PendingEvent,
        yielded: HasPayload,
        source: EventSource,
        key: str | None,
        ordinal: int,
    ) -> None:
        self.events += 1
        event.complete(None)
        if self._on_stored is not None:
            self._on_stored(source.watchers[0].watcher_id, yielded.payload)
