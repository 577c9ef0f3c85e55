"""Runs triggers that have no shared stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from triggerer.abc import BaseEventTrigger, TriggerEvent
from triggerer.domain.events import EventSink, EventSource
from triggerer.errors import PluginError
from triggerer.streams.pending_limit import PendingLimit


class Runner:
    """Runs one trigger without a stream, and submits its events to the sink. Each run needs a new trigger object.

    Args:
        on_refused: Called with the error when the store refuses an event. Synchronous, and must not raise.
    """

    def __init__(
        self,
        name: str,
        source: EventSource,
        *,
        sink: EventSink,
        pending: PendingLimit,
        on_refused: Callable[[Exception], None],
    ) -> None:
        self.name = name
        self.source = source
        self.pending = pending
        self.on_refused = on_refused
        self._sink = sink

    async def run(self, trigger: BaseEventTrigger) -> None:
        """Submit the events of `trigger.run()` until it returns.

        Raises:
            Exception: The error of `run()`.
        """
        events = trigger.run()
        if not isinstance(events, AsyncGenerator):
            raise PluginError(
                f"{type(trigger).__qualname__}.run() returned {type(events).__qualname__}",
                hint="write it as an async generator: `async def` with `yield`",
            )
        pending, sink = self.pending, self._sink
        async with aclosing(events):
            async for event in events:
                if not isinstance(event, TriggerEvent):
                    raise PluginError(
                        f"run() of {self.name} yielded {type(event).__qualname__}, not a TriggerEvent"
                    )
                pending.count += 1
                try:
                    sink.submit_nowait(StandaloneEvent(self), event, self.source, None, 0)
                except BaseException:
                    # The sink raised, for example in the payload's own code. It will not answer for this event.
                    pending.give_room()
                    raise
                if sink.is_full:
                    await sink.wait_for_room()
                await pending.wait_for_room()


class StandaloneEvent:
    """A `TriggerEvent` of a trigger without a stream. Implements `triggerer.domain.events.PendingEvent`."""

    __slots__ = ("_runner",)

    published_at = None

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def complete(self, error: Exception | None) -> None:
        self._runner.pending.give_room()
        if error is not None:
            self._runner.on_refused(error)
