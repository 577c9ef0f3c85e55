"""Calls a trigger's filter."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from triggerer.abc import BaseEventTrigger, TriggerEvent
from triggerer.errors import PluginError


def filtered(
    trigger: BaseEventTrigger, stream: AsyncGenerator[Any, None]
) -> AsyncGenerator[TriggerEvent, None]:
    """Return the trigger events that the trigger's filter derives from a stream.

    Raises:
        PluginError: The filter is no async generator.
    """
    events = trigger.filter_shared_stream(stream)
    if not isinstance(events, AsyncGenerator):
        raise PluginError(
            f"{type(trigger).__qualname__}.filter_shared_stream() returned {type(events).__qualname__}",
            hint="write it as an async generator: `async def` with `yield`",
        )
    return events
