"""Submits to the store the events that a catching-up filter derives."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import anyio

from triggerer.abc import TriggerEvent
from triggerer.domain.events import EventSource, Fence, WatcherRef
from triggerer.errors import PluginError
from triggerer.streams.catchup.processing.filter_deadline import FilterDeadline
from triggerer.streams.catchup.processing.in_flight import (
    CatchUpDerivedEvent,
    MessageInFlight,
    MessagesInFlight,
)
from triggerer.streams.catchup.processing.outcomes import Outcomes
from triggerer.streams.context import RuntimeContext
from triggerer.streams.delivery.group_state import GroupState


class CatchUpDeriver:
    """Submits the events of one watcher. All catching-up watchers share one limit for unanswered events.

    Args:
        name: The watcher's name, for errors.
        in_flight: The messages that the filter received. Each event belongs to the open message, which the filter
            received last.
        deadline: The filter's deadline. It is suspended while the filter waits for the store.
    """

    def __init__(
        self,
        watcher: WatcherRef,
        name: str,
        state: GroupState,
        context: RuntimeContext,
        in_flight: MessagesInFlight,
        outcomes: Outcomes,
        deadline: FilterDeadline,
    ) -> None:
        self._watcher = watcher
        self._name = name
        self._state = state
        self._sink = context.sink
        self._pending = context.catch_up_pending
        self._in_flight = in_flight
        self._outcomes = outcomes
        self._deadline = deadline

    async def drive(self, events: AsyncGenerator[TriggerEvent, None], fence: Fence | None) -> None:
        """Submit the filter's events until it returns.

        Args:
            fence: The stream's lease when the filter starts. If an event's message has another lease, the event is
                stored under the message's lease.
        """
        state, sink, pending = self._state, self._sink, self._pending
        messages, mark_stored = self._in_flight, self._mark_stored
        source = EventSource((self._watcher,), fence)
        async for event in events:
            if not isinstance(event, TriggerEvent):
                raise PluginError(
                    f"The filter of {self._name} yielded {type(event).__qualname__}, not a TriggerEvent"
                )
            if sink.is_full or pending.count >= pending.limit:
                # Wait before submitting: otherwise a thousand watchers would each exceed the limit by one.
                await self._wait_for_room()
            in_flight = messages.open
            if in_flight is None:
                # No message is open. The live filter yields such events too, so drop this one.
                continue
            ordinal = in_flight.derived
            in_flight.derived += 1
            if not state.may_act:
                await self._wait_to_be_closed()
                continue
            if in_flight.is_stale:
                continue
            # The producer may raise here, so compute key and fence before `unresolved` and `count` are changed.
            key, fence = in_flight.key, in_flight.fence
            if source.fence is not fence:
                source = EventSource((self._watcher,), fence)
            in_flight.unresolved += 1
            pending.count += 1
            try:
                sink.submit_nowait(
                    CatchUpDerivedEvent(in_flight, mark_stored), event, source, key, ordinal
                )
            except BaseException:
                # The sink raised, for example in the payload's own code. It will not answer for this event.
                in_flight.unresolved -= 1
                self._pending.give_room()
                raise

    async def _wait_to_be_closed(self) -> None:
        """Wait to be cancelled, so that the filter does not move past a message whose event may no longer be stored."""
        await anyio.sleep_forever()

    async def _wait_for_room(self) -> None:
        sink, pending = self._sink, self._pending
        with self._deadline.suspended():
            while sink.is_full or pending.count >= pending.limit:
                if sink.is_full:
                    await sink.wait_for_room()
                await pending.wait_for_room()

    def _mark_stored(self, in_flight: MessageInFlight, error: Exception | None) -> None:
        self._pending.give_room()
        self._outcomes.mark_stored(in_flight, error)
