"""Triggers that run on their own, outside any shared stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from triggerer.abc import BaseEventTrigger, TriggerEvent
from triggerer.errors import PluginError
from triggerer.runtime.context import RuntimeContext

if TYPE_CHECKING:
    from triggerer.runtime.hosted import HostedTrigger


class LoneEvent:
    """A `TriggerEvent` of a trigger without a stream. Implements `triggerer.domain.events.UnsettledEvent`."""

    __slots__ = ("_hosted",)

    def __init__(self, hosted: HostedTrigger) -> None:
        self._hosted = hosted

    def settle(self, error: Exception | None) -> None:
        backlog = self._hosted.backlog
        backlog.count -= 1
        if backlog.is_awaited:
            backlog.note_room()
        if error is not None:
            self._hosted.refusals.note(error)


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
    backlog = hosted.backlog
    async with aclosing(events):
        async for event in events:
            if not isinstance(event, TriggerEvent):
                raise PluginError(
                    f"run() of {hosted.name} yielded {type(event).__qualname__}, not a TriggerEvent"
                )
            backlog.count += 1
            context.sink.submit_nowait(LoneEvent(hosted), event, hosted.source, None, 0)
            await backlog.wait_for_room()
