"""Triggers for `NumbersConformance`: `Evens` keeps every rule, most others break one. Any process can import them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Hashable, Sequence
from typing import Any

import anyio

from triggerer.abc import (
    BaseEventTrigger,
    DeliveryFacts,
    SharedStreamSelector,
    TriggerEvent,
    reject_shared_stream_event,
)
from triggerer.errors import BrokerUnavailable
from triggerer.testing import TriggerConformance

_numbers = itertools.count()


class Evens(BaseEventTrigger):
    """Fires twice for each even number."""

    def __init__(self, source: str, times: int = 2) -> None:
        self.source = source
        self.times = times

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.{type(self).__name__}", {"source": self.source, "times": self.times}

    def shared_stream_key(self) -> Hashable:
        return ("numbers", self.source)

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[int]
    ) -> AsyncIterator[TriggerEvent]:
        async for number in shared_stream:
            if number % 2 == 0:
                for _ in range(self.times):
                    yield TriggerEvent({"number": number})


class Selecting(Evens):
    """Adds a selector: its filter sees only even numbers, or only odd ones if `kind` is 1."""

    kind = 0

    def shared_stream_selector(self) -> SharedStreamSelector:
        return SharedStreamSelector("parity", lambda number: number % 2, frozenset({self.kind}))

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[int]
    ) -> AsyncIterator[TriggerEvent]:
        async for event in super().filter_shared_stream(shared_stream):
            yield event


class SelectsTheOthers(Selecting):
    kind = 1


class SelectsNothingItRejects(Selecting):
    """Rejects odd numbers, but its selector never shows it one."""

    def shared_stream_selector(self) -> SharedStreamSelector:
        return super().shared_stream_selector()

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[int]
    ) -> AsyncIterator[TriggerEvent]:
        async for number in shared_stream:
            if number % 2:
                reject_shared_stream_event()
            else:
                for _ in range(self.times):
                    yield TriggerEvent({"number": number})


class Alone(BaseEventTrigger):
    """Has no stream."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.{type(self).__name__}", {}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        yield TriggerEvent(1)
        await anyio.sleep_forever()


class SerialisesByTurns(Evens):
    def serialize(self) -> tuple[str, dict[str, Any]]:
        path, arguments = super().serialize()
        return path, arguments | {"times": next(_numbers)}


class SerialisesObjects(Evens):
    def serialize(self) -> tuple[str, dict[str, Any]]:
        return super().serialize()[0], {"source": object(), "times": 2}


class ForgetsAnArgument(Evens):
    def serialize(self) -> tuple[str, dict[str, Any]]:
        return super().serialize()[0], {"source": self.source.upper(), "times": self.times}


class NamesAnother(Evens):
    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.Evens", super().serialize()[1]


class KeysByIdentity(Evens):
    def shared_stream_key(self) -> Hashable:
        return ("numbers", id(self))


class KeysByHash(Evens):
    def shared_stream_key(self) -> Hashable:
        return ("numbers", hash(self.source))


class KeysByTimes(Evens):
    def shared_stream_key(self) -> Hashable:
        return ("numbers", self.source, self.times)


class KeysAlike(Evens):
    def shared_stream_key(self) -> Hashable:
        return "numbers"


class FilterReturnsAList(Evens):
    def filter_shared_stream(self, shared_stream: AsyncIterator[int]) -> Any:
        return []


class LagsByOne(Evens):
    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[int]
    ) -> AsyncIterator[TriggerEvent]:
        last = 1
        async for number in shared_stream:
            if last % 2 == 0:
                yield TriggerEvent({"number": last})
                yield TriggerEvent({"number": last})
            last = number


class YieldsObjects(Evens):
    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[int]
    ) -> AsyncIterator[TriggerEvent]:
        async for event in super().filter_shared_stream(shared_stream):
            yield TriggerEvent(object() if event.payload else None)


class SwallowsErrors(Evens):
    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[int]
    ) -> AsyncIterator[TriggerEvent]:
        try:
            async for event in super().filter_shared_stream(shared_stream):
                yield event
        except OSError:
            return


class OutlivesCancellation(Evens):
    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[int]
    ) -> AsyncIterator[TriggerEvent]:
        try:
            async for event in super().filter_shared_stream(shared_stream):
                yield event
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.6)
            raise


class CleansUpWithoutARun(Evens):
    async def cleanup(self) -> None:
        raise AttributeError("no connection")


class TellsSeconds(Evens):
    """The retention is a number instead of a `timedelta`."""

    async def describe_delivery(self, *, ask: bool) -> DeliveryFacts:
        return DeliveryFacts(is_acknowledged=True, because="asked", retention=60.0)  # type: ignore[arg-type]


class TellsFindingsAsTexts(Evens):
    async def describe_delivery(self, *, ask: bool) -> DeliveryFacts:
        found: Any = ("it is old",)
        return DeliveryFacts(is_acknowledged=True, because="asked", findings=found)


class TellsAMapping(Evens):
    async def describe_delivery(self, *, ask: bool) -> Any:
        return {"is_acknowledged": True, "because": "asked"}


class TellsAtOnce(Evens):
    """`describe_delivery` is not a coroutine function."""

    def describe_delivery(self, *, ask: bool) -> Any:
        return DeliveryFacts(is_acknowledged=True, because="asked")


class AsksAlways(Evens):
    async def describe_delivery(self, *, ask: bool) -> DeliveryFacts:
        raise BrokerUnavailable("no broker answers at numbers:1")


class NumbersConformance(TriggerConformance):
    """The suite for `Evens` and its faulty subclasses."""

    patience_s = 0.3
    kind: type[Evens] = Evens

    def new_trigger(self) -> BaseEventTrigger:
        return self.kind("primes")

    def siblings(self) -> Sequence[BaseEventTrigger]:
        return [self.kind("primes", times=3)]

    def strangers(self) -> Sequence[BaseEventTrigger]:
        return [self.kind("squares")]

    def raw_events(self) -> Sequence[tuple[Any, int]]:
        return [(1, 0), (2, 2), (4, 2), (5, 0)]
