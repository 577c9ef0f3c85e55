"""Trigger events that a filter has yielded, from their submission until the store has answered."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from enum import Enum, auto
from typing import Any

from triggerer.domain.events import EventSource
from triggerer.streams.clock import published_at
from triggerer.streams.delivery.group_state import GroupState
from triggerer.streams.delivery.lane import Entry
from triggerer.streams.delivery.ledger import LedgerMember
from triggerer.streams.pending_limit import PendingLimit


class _Completed(Enum):
    COMPLETED = auto()


_COMPLETED = _Completed.COMPLETED


class Deriver(LedgerMember):
    """The part of a subscriber that its derived events use until the store has answered."""

    __slots__ = ("oldest_pending", "on_departed", "on_refused", "pending", "source", "state")

    source: EventSource
    state: GroupState
    pending: PendingLimit
    oldest_pending: DerivedEvent | None
    """The first unanswered event that belongs to a message."""
    on_refused: Callable[[Exception], None] | None
    on_departed: Callable[[Any], None]
    """Called once the subscriber is absent and the store has answered all of its events."""


class DerivedEvent:
    """A `TriggerEvent` on its way into the store, tied to the raw event that was open when the filter yielded it.

    Implements `triggerer.domain.events.PendingEvent`. The object is small (56 bytes), because many events are pending
    while the store is slow. The events of a subscriber form a linked list, in the order of derivation.
    """

    __slots__ = ("entry", "next", "subscriber")

    subscriber: Deriver
    entry: Entry | _Completed | None
    next: DerivedEvent | None
    """The subscriber's next event. None: this event is the last of the list, or has left the list."""

    def __init__(self, subscriber: Deriver, entry: Entry | None) -> None:
        self.subscriber = subscriber
        self.entry = entry
        self.next = None

    @property
    def broadcast_at(self) -> float:
        """The time at which the event's message was broadcast; infinite if the event belongs to no message."""
        return self.entry.broadcast_at if isinstance(self.entry, Entry) else math.inf

    @property
    def published_at(self) -> datetime | None:
        """See `PendingEvent`."""
        entry, ledger = self.entry, self.subscriber.state.ledger
        if not isinstance(entry, Entry) or not 0 <= entry.seq - ledger.base < len(ledger.events):
            return None
        return published_at(ledger.events[entry.seq - ledger.base])

    def complete(self, error: Exception | None) -> None:
        """See `PendingEvent`. The store may answer even after `abandon`."""
        subscriber = self.subscriber
        pending = subscriber.pending
        pending.count -= 1
        if pending.is_awaited:
            pending.signal_room()
        entry = self.entry
        if entry is _COMPLETED:
            return
        self.entry = _COMPLETED
        if error is not None and subscriber.on_refused is not None:
            subscriber.on_refused(error)
        if entry is None:
            return
        if subscriber.oldest_pending is self:
            # Remove this event from the list, together with the next events that are completed already.
            following, self.next = self.next, None
            while following is not None and following.entry is _COMPLETED:
                following = following.next
            subscriber.oldest_pending = following
        if error is not None:
            subscriber.state.ledger.refuse(subscriber, entry)
        entry.unresolved -= 1
        if not entry.unresolved:
            lane = entry.lane
            # If this entry is not the lane's head, `Lanes.finish` queues the lane later.
            if lane is not None and lane.head is entry:
                state = subscriber.state
                state.lanes.queue(lane)
                if not state.progress.is_signalled:
                    state.progress.signal()
        if not subscriber.is_present and subscriber.oldest_pending is None:
            subscriber.on_departed(subscriber)

    def abandon(self, error: Exception) -> None:
        """Refuse the event before the store has answered."""
        # `complete` subtracts one. But until the store's answer, the event still counts as pending.
        self.subscriber.pending.count += 1
        self.complete(error)
