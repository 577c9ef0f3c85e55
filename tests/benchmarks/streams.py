"""Measures the runtime alone, in one process: how many messages per second every subscriber of a stream resolves.

There is no broker and no database.

- Rows with `skip`: no filter derives an event. This is the typical cost, because most filters skip most events.
- Rows with `yield`: each filter derives an event from each raw event, and the derived event is confirmed at once.
"""

from __future__ import annotations

import gc
import time
from collections.abc import AsyncIterator, Hashable, Sequence
from typing import Any, ClassVar, Final

import anyio

from tests.benchmarks.report import Figures, Row
from tests.benchmarks.scene import Scene
from triggerer.abc import AdvanceItem, BaseEventTrigger, SharedStreamProducer, TriggerEvent
from triggerer.testing import StreamHarness

_EVENTS: Final = 200_000
_NOTE: Final = "raw events/s that every subscriber has resolved; events * subscribers is the number of deliveries."


class _Source:
    """The load of one measurement. `done` is set when all events were advanced or, on the fast path, read by all
    filters."""

    current: ClassVar[_Source]

    def __init__(self, events: int, lanes: int) -> None:
        self.events = events
        self.lanes = lanes
        self.advanced = 0
        self.done = anyio.Event()


class _Producer(SharedStreamProducer):
    def __init__(self, source: _Source) -> None:
        self._source = source

    async def open_stream(self) -> AsyncIterator[tuple[int, int]]:
        for number in range(self._source.events):
            yield number, number
        await anyio.sleep_forever()

    def get_advance_lane(self, broker_payload: int) -> Hashable:
        return broker_payload % self._source.lanes

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        source = self._source
        source.advanced += len(batch)
        if source.advanced >= source.events:
            source.done.set()


class _Acknowledged(BaseEventTrigger):
    def __init__(self, *, yields: bool, number: int) -> None:
        self.yields = yields
        self.number = number

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "benchmark", {"yields": self.yields, "number": self.number}

    def shared_stream_key(self) -> Hashable:
        return "benchmark"

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return _Producer(_Source.current)

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[int]
    ) -> AsyncIterator[TriggerEvent]:
        if self.yields:
            async for number in shared_stream:
                yield TriggerEvent(number)
        else:
            async for number in shared_stream:
                if number < 0:
                    yield TriggerEvent(number)


class _Fast(BaseEventTrigger):
    """Skips every event on the fast path.

    Sets `_Source.done` when all subscribers have read the last number.
    """

    def __init__(self, *, yields: bool, number: int) -> None:
        self.number = number

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "benchmark", {"yields": False, "number": self.number}

    def shared_stream_key(self) -> Hashable:
        return "benchmark"

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[int]:
        for number in range(_Source.current.events):
            yield number
        await anyio.sleep_forever()

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[int]
    ) -> AsyncIterator[TriggerEvent]:
        source = _Source.current
        last = source.events - 1
        async for number in shared_stream:
            if number == last:
                # On the fast path `lanes` is the number of subscribers.
                source.advanced += 1
                if source.advanced == source.lanes:
                    source.done.set()
            if number < 0:
                yield TriggerEvent(number)


async def _rate(kind: type[Any], subscribers: int, lanes: int, yields: bool, events: int) -> float:
    _Source.current = _Source(events, subscribers if kind is _Fast else lanes)
    async with StreamHarness() as streams:
        for number in range(subscribers):
            await streams.add(kind(yields=yields, number=number))
        gc.collect()
        began = time.perf_counter()
        await _Source.current.done.wait()
        return events / (time.perf_counter() - began)


def measure(scene: Scene) -> Figures:
    total = 5_000 if scene.quick else _EVENTS
    rows: list[Row] = []
    for name, kind, yields in (
        ("ack mode, skip", _Acknowledged, False),
        ("ack mode, yield", _Acknowledged, True),
        ("fast path, skip", _Fast, False),
    ):
        for subscribers in (1, 10, 100):
            for lanes in (1,) if kind is _Fast else (1, 64):
                events = total if subscribers == 1 else total * 2 // subscribers
                rate = anyio.run(
                    _rate, kind, subscribers, lanes, yields, events,
                    backend_options={"use_uvloop": True},
                )  # fmt: skip
                rows.append(
                    {
                        "mode": name,
                        "subscribers": subscribers,
                        "lanes": lanes,
                        "events/s": rate,
                        "events * subscribers/s": rate * subscribers,
                    }
                )
    return Figures("streams", "Streams: the runtime alone, in one process", tuple(rows), _NOTE)
