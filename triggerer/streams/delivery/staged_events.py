"""Collects derived events until the pump runs, to store them with the producer's new state in one transaction."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from typing import Final

from triggerer.abc import AdvanceItem, StreamState
from triggerer.domain.events import EventSink, EventSource, HasPayload, PendingEvent
from triggerer.domain.watchers.stream_states import EventsWithState, Submission
from triggerer.streams.cancellation import plugin_code
from triggerer.streams.delivery.derived_event import DerivedEvent
from triggerer.streams.delivery.group_state import GroupState
from triggerer.streams.delivery.lane import Entry
from triggerer.streams.supervision.stream_state import StoredState, tells_state_ahead

_MOST: Final = 512
"""The most messages that one stored state covers. The pump handles the same number in one burst."""


def stage(
    state: GroupState, sink: EventSink, with_state: EventsWithState | None, stored: StreamState
) -> Staging | None:
    """Return the group's staging, or None if the producer's state is stored after the events."""
    producer = state.producer
    assert producer is not None
    if (
        with_state is None
        or not isinstance(stored, StoredState)
        or not tells_state_ahead(type(producer))
        or producer.lanes_advance_side_by_side
    ):
        return None
    return Staging(state, sink, with_state, stored)


class Staging:
    """The `EventSink` of the subscribers of a group whose producer has `state_after`.

    The pump submits the staged events when it next runs. If all subscribers have passed the events' messages, one
    transaction stores the events and the producer's new state. Otherwise the state is stored later.

    While a state is being stored, no message is advanced, and no other state is submitted.
    """

    def __init__(
        self, state: GroupState, sink: EventSink, with_state: EventsWithState, stored: StoredState
    ) -> None:
        self._state = state
        self._sink = sink
        self._with_state = with_state
        self._stored = stored
        self._staged: list[Submission] = []
        self.is_ahead = False
        """True while a state is being stored. The messages that it covers are advanced afterwards."""
        self._is_advance_due = False
        self._is_ended = False
        stored.on_saved = state.progress.signal

    @property
    def is_full(self) -> bool:
        return self._sink.is_full

    async def wait_for_room(self) -> None:
        await self._sink.wait_for_room()

    def submit_nowait(
        self,
        event: PendingEvent,
        yielded: HasPayload,
        source: EventSource,
        key: str | None,
        ordinal: int,
    ) -> None:
        if self._is_ended:
            self._sink.submit_nowait(event, yielded, source, key, ordinal)
            return
        try:
            # The filter may change the payload before the store reads it.
            kept = deepcopy(yielded)
        except Exception:
            # The payload cannot be copied. Submit the original, because the store refuses it with an error of its own.
            self._hand_on()
            self._sink.submit_nowait(event, yielded, source, key, ordinal)
            return
        self._staged.append(Submission(event, kept, source, key, ordinal))
        if not self._state.progress.is_signalled:
            self._state.progress.signal()

    def flush(self) -> None:
        """Submit the staged events, with the producer's state if all subscribers have passed the events' messages."""
        if not self._staged or self.is_ahead or self._is_advance_due or self._stored.is_saving:
            # If an earlier state is being stored, or the messages that it covers are not advanced yet, the events stay
            # staged. Afterwards the pump calls `flush` again.
            return
        passed = self._find_passed()
        if not passed:
            self._hand_on()
            return
        producer = self._state.producer
        assert producer is not None
        with plugin_code(f"state_after() of the shared stream {self._state.name}"):
            value = producer.state_after(passed)
        change = self._stored.change_ahead(value, self._mark_done)
        staged, self._staged = self._staged, []
        self.is_ahead = True
        self._with_state.submit_with_state_nowait(staged, change)

    def _hand_on(self) -> None:
        staged, self._staged = self._staged, []
        for one in staged:
            self._sink.submit_nowait(one.event, one.yielded, one.source, one.key, one.ordinal)

    def _mark_done(self) -> None:
        self.is_ahead = False
        self._is_advance_due = True
        self._state.progress.signal()

    def mark_advanced(self) -> None:
        """Record that the pump has advanced every ready lane."""
        self._is_advance_due = False

    def end(self) -> None:
        """Submit the staged events, because the group ends. From now on, `submit_nowait` submits each event at once."""
        self._is_ended = True
        self._hand_on()

    def _find_passed(self) -> list[AdvanceItem]:
        """Return the messages that could be advanced if all staged events were durable.

        If no staged event belongs to these messages, the list is empty, because `advance` will store their state.
        """
        lanes, passed = self._state.lanes, self._state.ledger.passed
        staged: Counter[Entry] = Counter()
        for one in self._staged:
            if isinstance(one.event, DerivedEvent) and isinstance(one.event.entry, Entry):
                staged[one.event.entry] += 1
        items: list[AdvanceItem] = []
        takes_events = False
        for lane in lanes:
            if lane.key in lanes.decided_lanes:
                continue
            entry = lane.head
            while (
                entry is not None
                and len(items) < _MOST
                and entry.seq < passed
                and entry.unresolved == staged[entry]
                and (outcome := entry.outcome()).is_clean
            ):
                items.append(AdvanceItem(entry.payload, outcome))
                takes_events = takes_events or staged[entry] > 0
                entry = entry.next
        return items if takes_events else []
