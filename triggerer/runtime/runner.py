"""Triggers that run on their own, outside any shared stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import anyio

from triggerer.abc import BaseEventTrigger, TriggerEvent
from triggerer.domain.events import EventSource
from triggerer.errors import PluginError
from triggerer.runtime.context import RuntimeContext

if TYPE_CHECKING:
    from triggerer.runtime.hosted import HostedTrigger


class LoneEvent:
    """A `TriggerEvent` of a trigger without a stream. Implements `triggerer.domain.events.UnsettledEvent`."""

    __slots__ = ("_runner", "event")

    idempotency_key: str | None = None
    ordinal = 0

    def __init__(self, runner: LoneRunner, event: TriggerEvent) -> None:
        self._runner = runner
        self.event = event

    @property
    def payload(self) -> Any:
        return self.event.payload

    @property
    def source(self) -> EventSource:
        return self._runner.hosted.source

    def settle(self, error: Exception | None) -> None:
        self._runner.note_settled(self.event, error)


class LoneRunner:
    """Counts what is on its way into the store, and pauses `run()` at the bound."""

    def __init__(self, hosted: HostedTrigger, limit: int) -> None:
        self.hosted = hosted
        self._limit = limit
        self._unsettled = 0
        self._room = anyio.Event()

    def note_submitted(self) -> None:
        self._unsettled += 1

    def note_settled(self, event: TriggerEvent, error: Exception | None) -> None:
        self._unsettled -= 1
        self._room.set()
        self._room = anyio.Event()
        if self.hosted.spec.on_settled is not None:
            self.hosted.spec.on_settled(event, error)

    async def wait_for_room(self) -> None:
        while self._unsettled >= self._limit:
            await self._room.wait()


async def run_alone(
    trigger: BaseEventTrigger, hosted: HostedTrigger, context: RuntimeContext
) -> None:
    """Hand what `trigger.run()` yields to the sink, until it returns.

    Raises:
        Exception: What `run()` raised.
    """
    events = trigger.run()
    if not isinstance(events, AsyncGenerator):
        raise PluginError(
            f"{type(trigger).__qualname__}.run() returned {type(events).__qualname__}",
            hint="write it as an async generator: `async def` with `yield`",
        )
    runner = LoneRunner(hosted, context.settings.max_unsettled)
    async with aclosing(events):
        async for event in events:
            if not isinstance(event, TriggerEvent):
                raise PluginError(
                    f"run() of {hosted.name} yielded {type(event).__qualname__}, not a TriggerEvent"
                )
            runner.note_submitted()
            context.sink.submit_nowait(LoneEvent(runner, event))
            await runner.wait_for_room()
