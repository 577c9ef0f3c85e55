"""Messages that a catching-up filter received, until every event derived from them is durable."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Any

from triggerer.domain.events import Fence
from triggerer.domain.watchers.parked import StoredMessage
from triggerer.streams.catchup.backlogs.backlog import Backlog
from triggerer.streams.catchup.backlogs.stored_lane import StoredLane
from triggerer.streams.catchup.reading.lane_tail import LogMessage
from triggerer.streams.catchup.reading.queue_reader import QueueMessage
from triggerer.streams.clock import published_at


class _InFlight:
    """A message that the filter received. Its events are stored with the idempotency key `key` under `fence`."""

    __slots__ = ("derived", "is_dropped", "is_rejected", "rejected_because", "unresolved")

    is_probe = False
    """Whether the message is a probe, whose events are not stored."""

    def __init__(self) -> None:
        self.unresolved = 1
        """The number of things for which the message still waits:

        - one until the filter has moved past the message,
        - one for each derived event that is not durable,
        - one while the message is being parked.
        """
        self.derived = 0
        """The number of derived events."""
        self.is_rejected = False
        self.rejected_because: str | None = None
        """The filter's reason for the rejection, if it gave one."""
        self.is_dropped = False
        """True: ignore the outcome. The message is read again, because this message or an earlier one failed."""

    @property
    def is_stale(self) -> bool:
        """True if events of this message must not be stored."""
        return self.is_dropped or self.is_probe


class LaneMessageInFlight(_InFlight):
    """A message of a lane that has a backlog.

    Args:
        key_of: Returns a log message's key for its payload. Called only if an event derives from the message.
    """

    __slots__ = ("_key_of", "backlog", "is_being_parked", "is_parked", "message")

    def __init__(
        self,
        backlog: Backlog,
        message: LogMessage | QueueMessage,
        key_of: Callable[[Any], str | None],
    ) -> None:
        # The base class's `__init__` would cost a call for each message.
        self.unresolved = 1
        self.derived = 0
        self.is_rejected = False
        self.is_dropped = False
        self.backlog = backlog
        self.message = message
        self.is_being_parked = False
        """Whether the message is parked, or is being parked."""
        self.is_parked = False
        """Whether the message is in the store as a parked message, so that an operator decides about it."""
        self._key_of = key_of

    @property
    def event(self) -> Any:
        return self.message.event

    @property
    def key(self) -> str | None:
        message, reemit = self.message, self.backlog.reemit
        if isinstance(message, QueueMessage):
            return message.key
        key = self._key_of(message.payload)
        return key if reemit is None else reemit.key_of(message.position, key)

    @property
    def fence(self) -> Fence:
        return self.backlog.fence

    @property
    def is_stale(self) -> bool:
        return self.is_dropped or self.backlog.is_gone


class Probe(_InFlight):
    """A message that is tried only to see whether the filter fails every message, or only the message that failed."""

    __slots__ = ("backlog", "event")

    is_probe = True
    key = None

    def __init__(self, backlog: Backlog, message: LogMessage | QueueMessage) -> None:
        super().__init__()
        self.event = message.event
        self.backlog = backlog
        """The backlog whose message failed."""

    @property
    def fence(self) -> Fence:
        return self.backlog.fence


class ReplayedMessageInFlight(_InFlight):
    """A parked message that is replayed."""

    __slots__ = ("event", "fence", "row")

    def __init__(self, row: StoredMessage, event: Any, fence: Fence) -> None:
        super().__init__()
        self.row = row
        self.event = event
        self.fence = fence

    @property
    def key(self) -> str:
        return self.row.key


MessageInFlight = LaneMessageInFlight | Probe | ReplayedMessageInFlight


class CatchUpDerivedEvent:
    """A derived event on its way into the store. Implements `triggerer.domain.events.PendingEvent`."""

    __slots__ = ("_in_flight", "_on_stored")

    def __init__(
        self,
        in_flight: MessageInFlight,
        on_stored: Callable[[MessageInFlight, Exception | None], None],
    ) -> None:
        self._in_flight = in_flight
        self._on_stored = on_stored

    @property
    def published_at(self) -> datetime | None:
        """See `PendingEvent`."""
        return published_at(self._in_flight.event)

    def complete(self, error: Exception | None) -> None:
        self._on_stored(self._in_flight, error)


class MessagesInFlight:
    """The messages that one catching-up filter received: the open one, and earlier ones whose events are not durable.

    Most messages of a log derive no event. Such a message is in no list once the filter has passed it.
    """

    def __init__(self) -> None:
        self.open: MessageInFlight | None = None
        """The message that the filter received last. None: the filter has moved past the message."""
        self._by_lane: dict[Backlog, deque[LaneMessageInFlight]] = {}
        """By lane and in order, the messages that the filter has moved past."""

    def pass_by(self, in_flight: LaneMessageInFlight) -> None:
        """Move the cursor past a log's message from which no event derives.

        If the lane has no earlier message in flight, move the position too.
        """
        backlog, position = in_flight.backlog, in_flight.message.position
        # `LogMessage.end` has this value too, but this function runs for nearly every message and saves the call.
        backlog.cursor = [position[0], position[1] + 1]
        if backlog.in_flight_by is self and backlog not in self._by_lane:
            backlog.position = backlog.cursor

    def add(self, in_flight: LaneMessageInFlight) -> None:
        """Add a message that the filter has moved past. Once its events are durable, `move` moves the position."""
        queue = self._by_lane.get(in_flight.backlog)
        if queue is None:
            queue = self._by_lane[in_flight.backlog] = deque()
        queue.append(in_flight)

    def move(self, backlog: Backlog) -> bool:
        """Move the position past durable messages; return whether any of them derived an event."""
        if backlog.in_flight_by is not self:
            return False
        queue = self._by_lane.get(backlog)
        derived, last = 0, None
        while queue and not queue[0].unresolved:
            last = queue.popleft()
            derived += last.derived
            if backlog.stored_lane is not None:
                _mark_passed(backlog.stored_lane, last)
        if not queue:
            if queue is not None:
                del self._by_lane[backlog]
            if not backlog.is_gone:
                # No message is in flight, so all events of the messages before the cursor are durable.
                backlog.position = backlog.cursor
        elif last is not None:
            backlog.position = (
                last.message.end if backlog.stored_lane is not None else queue[0].message.position
            )
        return derived > 0

    def drop_from(self, in_flight: LaneMessageInFlight) -> None:
        """Drop this message and the later ones of its lane, because they are read again."""
        queue = self._by_lane.get(in_flight.backlog, deque())
        while queue and in_flight in queue:
            _drop(queue.pop())
        _drop(in_flight)
        if opened := self._open_of(in_flight.backlog):
            _drop(opened)

    def forget(self, backlog: Backlog) -> None:
        """Drop the lane's messages. Late answers of the store for them are ignored."""
        for in_flight in self._by_lane.pop(backlog, ()):
            in_flight.is_dropped = True
        if opened := self._open_of(backlog):
            opened.is_dropped = True

    def _open_of(self, backlog: Backlog) -> LaneMessageInFlight | None:
        in_flight = self.open
        return (
            in_flight
            if isinstance(in_flight, LaneMessageInFlight) and in_flight.backlog is backlog
            else None
        )


def _drop(in_flight: LaneMessageInFlight) -> None:
    in_flight.is_dropped = True
    if in_flight.backlog.stored_lane is not None and in_flight.key is not None:
        in_flight.backlog.stored_lane.in_flight_keys.discard(in_flight.key)


def _mark_passed(stored: StoredLane, in_flight: LaneMessageInFlight) -> None:
    """Mark a message's row for deletion, because the message's events are durable. A parked message keeps its row."""
    message = in_flight.message
    assert isinstance(message, QueueMessage)
    key = in_flight.key
    if message.id is None:
        key = stored.given_before_stored.pop(message.position[1], None)
    if key is not None and in_flight.is_parked:
        stored.mark_parked(key)
    elif key is not None:
        stored.mark_passed(key)
    elif in_flight.key is not None:
        stored.in_flight_keys.discard(in_flight.key)
