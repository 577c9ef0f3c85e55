"""Lanes of numbered messages, producers that read them and record their calls, and triggers for them."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from typing import Any, ClassVar

import anyio
from anyio.lowlevel import checkpoint

from tests.unit.streams.streams import HERE, Watching
from tests.unit.streams.supervised import Service
from triggerer.abc import AdvanceItem, SharedStreamProducer, TriggerEvent
from triggerer.streams import RuntimeSettings
from triggerer.streams.delivery.group import Group

Hook = Callable[[], Any]


class Raw:
    """A message whose lifetime a test can observe."""

    alive: ClassVar[weakref.WeakSet[Raw]] = weakref.WeakSet()

    def __init__(self, lane: Hashable, number: int, size_bytes: int = 0) -> None:
        self.size_bytes = size_bytes
        self.lane = lane
        self.number = number
        self.alive.add(self)


class Source:
    """Lanes of numbered messages, and the calls that its producers got."""

    known: ClassVar[dict[str, Source]] = {}

    def __init__(self, name: str) -> None:
        self.name = name
        self.known[name] = self
        self.left: dict[Hashable, deque[int]] = {}
        self.pulled: list[tuple[Hashable, int]] = []
        self.advanced: dict[Hashable, list[int]] = {}
        self.calls: list[tuple[str, Hashable]] = []
        self.hooks: dict[str, Hook] = {}
        self.heeds = True
        """Whether a paused lane delivers nothing."""
        self.turns = 0
        """The number of turns that other tasks get after each message."""
        self.closed = 0
        self.sizes: dict[tuple[Hashable, int], int] = {}
        """The sizes of the messages that differ from `each`."""
        self.each = 0
        self.asked: list[tuple[Hashable, int]] = []
        """The messages whose size was asked for."""
        self.changed = anyio.Event()

    def publish(self, count: int, lane: Hashable = 0) -> None:
        begin = len(self.left.get(lane, ()))
        self.left.setdefault(lane, deque()).extend(range(begin, begin + count))
        self.record_change()

    def record_change(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    async def record_call(self, what: str, lane: Hashable = None) -> None:
        self.calls.append((what, lane))
        hook = self.hooks.get(what)
        if hook is not None:
            await hook()

    def count(self, lane: Hashable = 0) -> int:
        return len(self.advanced.get(lane, ()))


class SourceProducer(SharedStreamProducer):
    """A producer that pulls from its lanes in turns, and can pause only the whole stream."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.paused: set[Hashable] = set()

    async def open_stream(self) -> AsyncIterator[tuple[Raw, Raw]]:
        source = self.source
        while True:
            lanes = [lane for lane, left in source.left.items() if left]
            if source.heeds:
                lanes = [lane for lane in lanes if lane not in self.paused]
            if not lanes:
                await source.changed.wait()
            for lane in lanes:
                if lane in self.paused and source.heeds:
                    continue
                number = source.left[lane].popleft()
                source.pulled.append((lane, number))
                raw = Raw(lane, number, source.sizes.get((lane, number), source.each))
                yield raw, raw
                del raw
                for _ in range(source.turns):
                    await checkpoint()

    def get_advance_lane(self, broker_payload: Raw) -> Hashable:
        return broker_payload.lane

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        for item in batch:
            raw = item.broker_payload
            self.source.advanced.setdefault(raw.lane, []).append(raw.number)

    async def pause(self) -> None:
        await self.source.record_call("pause")

    async def resume(self) -> None:
        await self.source.record_call("resume")

    async def aclose(self) -> None:
        self.source.closed += 1


class PausesLanes(SourceProducer):
    pauses_lanes = True

    async def pause_lane(self, lane: Hashable) -> None:
        await self.source.record_call("pause_lane", lane)
        self.paused.add(lane)

    async def resume_lane(self, lane: Hashable) -> None:
        await self.source.record_call("resume_lane", lane)
        self.paused.discard(lane)
        self.source.record_change()


class SideBySide(PausesLanes):
    lanes_advance_side_by_side = True


class FromSource(Watching):
    """Derives an event from each message of lane 0, and none from other lanes."""

    producer: ClassVar[type[SourceProducer]] = PausesLanes

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{HERE}.{type(self).__name__}", {"upstream": self.upstream}

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return cls.producer(Source.known[kwargs["upstream"]])

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Raw]
    ) -> AsyncIterator[TriggerEvent]:
        async for raw in shared_stream:
            if raw.lane == 0:
                yield TriggerEvent({"number": raw.number})


class FromWholeStream(FromSource):
    producer = SourceProducer


class FromSideBySide(FromSource):
    producer = SideBySide


def bounds(group: int = 1_000, lane: int = 1_000, **others: Any) -> RuntimeSettings:
    return RuntimeSettings(
        max_outstanding=group,
        max_outstanding_per_lane=lane,
        close_timeout=0.5,
        **others,
    )


def group_of(service: Service) -> Group:
    (stream,) = service.manager.streams.values()
    assert stream.group is not None
    return stream.group


async def confirm_everything(service: Service) -> None:
    while service.store.waiting:
        service.store.complete()
        await service.settle_down()
