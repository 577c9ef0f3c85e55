"""A broker in memory: a log for each lane, a committed position, and one reader for each lane at a time."""

from __future__ import annotations

import asyncio
import time
import uuid
from bisect import bisect_left
from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import anyio
import orjson
from anyio.lowlevel import checkpoint

from triggerer.abc import AdvanceItem, SharedStreamProducer
from triggerer.pluginkit.delivery import Judgement, judge
from triggerer.synchronization import Notifier


@dataclass(frozen=True, slots=True)
class InMemoryMessage:
    """The broker payload of one delivery."""

    value: Any
    lane: Hashable
    offset: int
    delivery: int
    """How often the producer had gone back to the lane's committed position before this delivery.

    Once the producer has gone back again, it ignores an advance of this delivery.
    """


class _Log:
    """One lane: its published values and its committed position."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.published_at: list[float] = []
        """When each value was published, in seconds since 1970."""
        self.committed = 0
        self.failures = 0
        self.holder: InMemoryQueueProducer | None = None
        self.locked_until = 0.0


class InMemoryBroker:
    """Stores all published messages. Producers come and go, as with a real broker.

    The committed position of a lane stays at a failed message. The broker delivers that message again at once, and then
    the later messages of the lane.

    Only one producer at a time reads a lane. The producer locks the lane, and renews the lock until the producer is
    closed. Call all methods on one event loop.

    Args:
        max_deliveries: After this number of failed deliveries a message goes to `dead_letters`. A rejected message
            goes there at once. None: a failed message is redelivered without limit, and a rejected message is dropped.
        lock_s: How long a lock lasts unless its producer renews it, in seconds of real time.
    """

    def __init__(self, *, max_deliveries: int | None = None, lock_s: float = 30.0) -> None:
        self.identity = uuid.uuid4().hex
        """Part of the idempotency keys, so that messages of two brokers have different keys."""
        self.max_deliveries = max_deliveries
        self.lock_s = lock_s
        self.dead_letters: list[Any] = []
        self._logs: dict[Hashable, _Log] = {}
        self._changed = Notifier()
        self._unordered = 0

    def publish(self, *values: Any, lane: Hashable = 0) -> None:
        """Append values to a lane; creates the lane if it does not exist."""
        log = self._logs.setdefault(lane, _Log())
        log.values.extend(values)
        log.published_at.extend([time.time()] * len(values))
        self.record_change()

    def publish_unordered(self, *values: Any) -> None:
        """Publish messages without order: each is a lane of its own, `("message", number)`."""
        for value in values:
            self.publish(value, lane=("message", self._unordered))
            self._unordered += 1

    def committed(self, lane: Hashable = 0) -> int:
        """The number of committed messages of the lane. No producer receives them again."""
        log = self._logs.get(lane)
        return 0 if log is None else log.committed

    def seek(self, position: int, lane: Hashable = 0) -> None:
        """Let the next producer start at `position` in the lane."""
        log = self._logs[lane]
        log.committed, log.failures = position, 0

    def producer(self) -> InMemoryProducer:
        """A producer that reads all lanes that no other producer has locked."""
        return InMemoryProducer(self)

    def logs(self) -> dict[Hashable, _Log]:
        return self._logs

    def record_change(self) -> None:
        """Wake the waiting producers."""
        self._changed.notify_all()

    async def wait_for_change(self) -> None:
        """Return after the next change, or when a lock may have expired."""
        with anyio.move_on_after(self.lock_s / 2):
            await self._changed.wait()


class _Reading:
    """How far a producer has read a lane that it has locked."""

    __slots__ = ("delivery", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        self.delivery = 0

    def rewind(self, position: int) -> None:
        """Read from `position` on. An advance of an earlier message is ignored."""
        self.position = position
        self.delivery += 1


class InMemoryQueueProducer(SharedStreamProducer):
    """Reads an `InMemoryBroker` as a queue: consumed messages cannot be read again.

    The event is the published value. The lane is the broker's lane.
    """

    pauses_lanes = True

    def __init__(self, broker: InMemoryBroker) -> None:
        self._broker = broker
        self._readings: dict[Hashable, _Reading] = {}
        self._is_paused = False
        self._paused_lanes: set[Hashable] = set()
        self._renewal: asyncio.TimerHandle | None = None

    async def open_stream(self) -> AsyncIterator[tuple[Any, InMemoryMessage]]:
        self._renew()
        while True:
            message = self._next()
            if message is not None:
                yield message.value, message
            else:
                await self._broker.wait_for_change()

    def _next(self) -> InMemoryMessage | None:
        """The next message, from the lane that was read longest ago; None if no lane has one."""
        if self._is_paused:
            return None
        for lane, log in self._broker.logs().items():
            if log.holder is not self and self._lock(log):
                self._begin(lane, log.committed)
        for lane, reading in self._readings.items():
            log = self._broker.logs()[lane]
            if lane in self._paused_lanes:
                continue
            if log.holder is self and reading.position < len(log.values):
                offset = reading.position
                reading.position += 1
                self._readings[lane] = self._readings.pop(lane)
                return InMemoryMessage(log.values[offset], lane, offset, reading.delivery)
        return None

    def _begin(self, lane: Hashable, position: int) -> None:
        """Read a lane that was just locked. The producer may have read the lane before and lost its lock."""
        reading = self._readings.get(lane)
        if reading is None:
            self._readings[lane] = _Reading(position)
        else:
            reading.rewind(position)

    def _lock(self, log: _Log) -> bool:
        now = asyncio.get_running_loop().time()
        if log.holder is not None and log.locked_until > now:
            return False
        log.holder, log.locked_until = self, now + self._broker.lock_s
        return True

    def _renew(self) -> None:
        """Extend the locks, now and for as long as the producer is open, even if the stream is not pulled."""
        loop = asyncio.get_running_loop()
        for log in self._broker.logs().values():
            if log.holder is self:
                log.locked_until = loop.time() + self._broker.lock_s
        self._renewal = loop.call_later(self._broker.lock_s / 3, self._renew)

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        # A real broker would get a request here. If this await is cancelled, nothing is committed.
        await checkpoint()
        for message, outcome in batch:
            log, reading = self._broker.logs()[message.lane], self._readings[message.lane]
            if log.holder is not self or message.delivery != reading.delivery:
                continue
            if outcome.failed or not (outcome.acked or outcome.rejected):
                # A failure counts against the message only if a subscriber failed at this very message.
                log.failures += 1 if outcome.blames_event else 0
                if log.failures != self._broker.max_deliveries:
                    reading.rewind(log.committed)
                    break
                self._broker.dead_letters.append(message.value)
            elif judge(outcome) is Judgement.REJECT and self.dead_letters_rejected(message):
                self._broker.dead_letters.append(message.value)
            log.committed, log.failures = message.offset + 1, 0
        self._broker.record_change()

    def get_advance_lane(self, broker_payload: InMemoryMessage) -> Hashable:
        return broker_payload.lane

    def get_idempotency_key(self, broker_payload: InMemoryMessage) -> str:
        """`<broker>/<lane>/<offset>`."""
        return f"{self._broker.identity}/{broker_payload.lane}/{broker_payload.offset}"

    def dead_letters_rejected(self, broker_payload: InMemoryMessage) -> bool:
        """Whether the broker has a place for dead letters."""
        return self._broker.max_deliveries is not None

    def get_size(self, broker_payload: InMemoryMessage) -> int:
        """The length of a value that is text or bytes; 0 for any other value."""
        value = broker_payload.value
        return len(value) if isinstance(value, (str, bytes)) else 0

    def dump_event(self, event: Any) -> bytes:
        """The value as JSON."""
        return orjson.dumps(["in memory", event])

    def load_event(self, data: bytes) -> Any:
        """The value that `dump_event` wrote.

        Raises:
            ValueError: `dump_event` did not write these bytes.
        """
        mark, event = orjson.loads(data)
        if mark != "in memory":
            raise ValueError(f"not written by dump_event: {data[:80]!r}")
        return event

    async def dead_letter(self, event: Any, reason: str) -> None:
        self._broker.dead_letters.append(event)

    async def pause(self) -> None:
        self._is_paused = True

    async def resume(self) -> None:
        self._is_paused = False
        self._broker.record_change()

    async def pause_lane(self, lane: Hashable) -> None:
        self._paused_lanes.add(lane)

    async def resume_lane(self, lane: Hashable) -> None:
        self._paused_lanes.discard(lane)
        self._broker.record_change()

    async def aclose(self) -> None:
        """Unlock the lanes. The next producer starts at their committed positions."""
        if self._renewal is not None:
            self._renewal.cancel()
        for log in self._broker.logs().values():
            if log.holder is self:
                log.holder = None
        self._broker.record_change()


class InMemoryProducer(InMemoryQueueProducer):
    """Reads an `InMemoryBroker` as a log."""

    def get_position(self, broker_payload: InMemoryMessage) -> list[Any]:
        """`[broker, offset]`."""
        return [self._broker.identity, broker_payload.offset]

    async def read_lane(
        self, lane: Hashable, position: list[Any]
    ) -> AsyncIterator[tuple[Any, InMemoryMessage]]:
        identity, offset = position
        if identity != self._broker.identity:
            offset = 0
        while True:
            log = self._broker.logs().get(lane)
            if log is None or offset >= len(log.values):
                await self._broker.wait_for_change()
                continue
            # This stands for a request to a real broker, which returns all messages from the offset on.
            await checkpoint()
            for value in log.values[offset:]:
                yield value, InMemoryMessage(value, lane, offset, 0)
                offset += 1

    async def find_positions(self, start: datetime | None) -> Mapping[Hashable, list[Any]]:
        return {
            lane: [
                self._broker.identity,
                0 if start is None else bisect_left(log.published_at, start.timestamp()),
            ]
            for lane, log in self._broker.logs().items()
        }
