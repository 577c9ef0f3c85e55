"""Triggers and producers that do what a test tells them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from typing import Any, ClassVar

import anyio

from triggerer.abc import (
    AdvanceItem,
    BaseEventTrigger,
    SharedStreamProducer,
    TriggerEvent,
    reject_shared_stream_event,
)

HERE = "tests.unit.streams.streams"


class Upstream:
    """An upstream; one per test, found by name because triggers carry only JSON."""

    known: ClassVar[dict[str, Upstream]] = {}

    def __init__(self, name: str) -> None:
        self.name = name
        self.known[name] = self
        self.send, self.receive = anyio.create_memory_object_stream[Any](1_000_000)
        self.advanced: list[tuple[Hashable, list[tuple[Any, tuple[int, int, int]]]]] = []
        self.producers: list[Producer] = []
        self.on_advance: Callable[[Sequence[AdvanceItem]], Any] | None = None
        self.on_filter: dict[str, Callable[[Any], Any]] = {}
        self.caught: list[Exception] = []
        self.closed = 0
        self.paused = 0
        self.resumed = 0

    def put(self, *values: Any, lane: Hashable = 0) -> None:
        for value in values:
            self.send.send_nowait((value, lane))

    def fail(self, error: BaseException) -> None:
        self.send.send_nowait(error)

    def end(self) -> None:
        self.send.send_nowait(StopAsyncIteration())

    def hold(self, name: str) -> anyio.Event:
        """Have a filter keep its message open until the returned event is set."""
        gate = anyio.Event()

        async def wait(_: Any) -> None:
            await gate.wait()

        self.on_filter[name] = wait
        return gate

    def hold_advances(self) -> anyio.Event:
        """Have advances return only once the returned event is set."""
        gate = anyio.Event()

        async def wait(_: Sequence[AdvanceItem]) -> None:
            await gate.wait()

        self.on_advance = wait
        return gate

    def outcomes(self, lane: Hashable = 0) -> dict[Any, tuple[int, int, int]]:
        """(acked, failed, rejected) of everything that was advanced in a lane."""
        found: dict[Any, tuple[int, int, int]] = {}
        for at, items in self.advanced:
            if at == lane:
                found.update(items)
        return found


class Producer(SharedStreamProducer):
    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        upstream.producers.append(self)

    async def open_stream(self) -> AsyncIterator[tuple[Any, Any]]:
        async for item in _items(self.upstream):
            yield item[0], item

    def get_advance_lane(self, broker_payload: Any) -> Hashable:
        return broker_payload[1]

    def get_idempotency_key(self, broker_payload: Any) -> str | None:
        return f"{broker_payload[1]}/{broker_payload[0]}"

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        if self.upstream.on_advance is not None:
            await self.upstream.on_advance(batch)
        lane = batch[0].broker_payload[1]
        assert all(item.broker_payload[1] == lane for item in batch)
        self.upstream.advanced.append(
            (
                lane,
                [
                    (
                        item.broker_payload[0],
                        (item.outcome.acked, item.outcome.failed, item.outcome.rejected),
                    )
                    for item in batch
                ],
            )
        )

    async def pause(self) -> None:
        self.upstream.paused += 1

    async def resume(self) -> None:
        self.upstream.resumed += 1

    async def aclose(self) -> None:
        self.upstream.closed += 1


async def _items(upstream: Upstream) -> AsyncIterator[tuple[Any, Hashable]]:
    while True:
        item = await upstream.receive.receive()
        if isinstance(item, StopAsyncIteration):
            return
        if isinstance(item, BaseException):
            raise item
        yield item


class Watching(BaseEventTrigger):
    """Yields each event that `only` allows; `on_filter` of the upstream, under its `name`, may do anything."""

    def __init__(self, upstream: str, name: str = "one", only: list[Any] | None = None) -> None:
        self.upstream = upstream
        self.name = name
        self.only = only

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{HERE}.{type(self).__name__}", {
            "upstream": self.upstream,
            "name": self.name,
            "only": self.only,
        }

    def shared_stream_key(self) -> Hashable:
        return (type(self).__name__, self.upstream)

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        act = Upstream.known[self.upstream].on_filter.get(self.name)
        async for event in shared_stream:
            if act is not None:
                answer = await act(event)
                if answer == "reject":
                    reject_shared_stream_event()
                    continue
                if answer == "return":
                    return
            if self.only is None or event in self.only:
                yield TriggerEvent({"value": event})


class Acking(Watching):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return Producer(Upstream.known[kwargs["upstream"]])


class Catching(Acking):
    """Appends each error that the stream raises to its upstream's `caught`, and raises it again."""

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        try:
            async for event in shared_stream:
                yield TriggerEvent({"value": event})
        except Exception as error:
            Upstream.known[self.upstream].caught.append(error)
            raise


class Fast(Watching):
    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[Any]:
        async for value, _ in _items(Upstream.known[kwargs["upstream"]]):
            yield value


class Alone(Watching):
    """Yields its upstream's values without a shared stream, and calls `on_filter` before each."""

    def shared_stream_key(self) -> None:
        return None

    async def run(self) -> AsyncIterator[TriggerEvent]:
        upstream = Upstream.known[self.upstream]
        while True:
            value, _ = await upstream.receive.receive()
            if (act := upstream.on_filter.get(self.name)) is not None:
                await act(value)
            yield TriggerEvent({"value": value})


class SideBySide(Producer):
    lanes_advance_side_by_side = True


class AckingSideBySide(Acking):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return SideBySide(Upstream.known[kwargs["upstream"]])
