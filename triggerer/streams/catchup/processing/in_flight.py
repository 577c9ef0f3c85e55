"""What was given to a filter that catches up, until all that derives from it is durable."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from triggerer.domain.events import Fence
from triggerer.domain.watchers.parked import KeptMessage
from triggerer.streams.catchup.backlogs.backlog import Lag
from triggerer.streams.catchup.backlogs.stored_lane import KeptInLane
from triggerer.streams.catchup.reading.lane_tail import Message
from triggerer.streams.catchup.reading.queue_reader import QueueMessage


class _Taken:
    """A message that was given to the filter: `event`. What derives from it is stored under `key` and `fence`."""

    __slots__ = ("derived", "is_dropped", "is_rejected", "rejected_because", "unresolved")

    is_trial = False
    """Whether it is only tried: nothing that derives from it is stored."""

    def __init__(self) -> None:
        self.unresolved = 1
        """One until the filter has moved past it, one for each derived event that is not durable, and one while it is
        being set aside."""
        self.derived = 0
        """How many events derive from it."""
        self.is_rejected = False
        self.rejected_because: str | None = None
        """Set when it is rejected: the filter's reason, if it gave one."""
        self.is_dropped = False
        """Whether what becomes of it counts no more: it is read again, since it failed or lies behind one that did."""

    @property
    def is_stale(self) -> bool:
        """Whether nothing that derives from it is to be stored any more."""
        return self.is_dropped or self.is_trial


class TakenFromLane(_Taken):
    """A message of a lane in which the watcher is behind.

    Args:
        key_of: Tells the key of a message of a log by its payload. Asked only for messages from which something
            derives.
    """

    __slots__ = ("_key_of", "is_parked", "is_set_aside", "lag", "message")

    def __init__(
        self, lag: Lag, message: Message | QueueMessage, key_of: Callable[[Any], str | None]
    ) -> None:
        # Without the base class's, which would be a call more for each message.
        self.unresolved = 1
        self.derived = 0
        self.is_rejected = False
        self.is_dropped = False
        self.lag = lag
        self.message = message
        self.is_parked = False
        """Whether it is, or is being, set aside."""
        self.is_set_aside = False
        """Whether the store has it so: a person decides about it now."""
        self._key_of = key_of

    @property
    def event(self) -> Any:
        return self.message.event

    @property
    def key(self) -> str | None:
        message, again = self.message, self.lag.again
        if isinstance(message, QueueMessage):
            return message.key
        key = self._key_of(message.payload)
        return key if again is None else again.key_of(message.position, key)

    @property
    def fence(self) -> Fence:
        return self.lag.fence

    @property
    def is_stale(self) -> bool:
        return self.is_dropped or self.lag.is_gone


class Trial(_Taken):
    """A message that is given to the filter to see whether it takes any."""

    __slots__ = ("event", "lag")

    is_trial = True
    key = None

    def __init__(self, lag: Lag, message: Message | QueueMessage) -> None:
        super().__init__()
        self.event = message.event
        self.lag = lag
        """Whose message has failed."""

    @property
    def fence(self) -> Fence:
        return self.lag.fence


class TakenAgain(_Taken):
    """A message that was set aside, and is replayed."""

    __slots__ = ("event", "fence", "kept")

    def __init__(self, kept: KeptMessage, event: Any, fence: Fence) -> None:
        super().__init__()
        self.kept = kept
        self.event = event
        self.fence = fence

    @property
    def key(self) -> str:
        return self.kept.key


Taken = TakenFromLane | Trial | TakenAgain


class TakenDerived:
    """An event that derives from a message. Implements `triggerer.domain.events.PendingEvent`."""

    __slots__ = ("_on_stored", "_taken")

    def __init__(self, taken: Taken, on_stored: Callable[[Taken, Exception | None], None]) -> None:
        self._taken = taken
        self._on_stored = on_stored

    def complete(self, error: Exception | None) -> None:
        self._on_stored(self._taken, error)


class TakenMessages:
    """The messages of lanes that a filter was given: the one that it has open, and those that are not dealt with yet.

    Of a log, what the filter has passed and waits for nothing is in no list: most messages derive nothing.
    """

    def __init__(self) -> None:
        self.open: Taken | None = None
        """What the filter was given last, until it moves past it."""
        self._by_lane: dict[Lag, deque[TakenFromLane]] = {}
        """By lane and in order, what the filter has moved past."""

    def pass_by(self, taken: TakenFromLane) -> None:
        """The filter has moved past a message of a log, and nothing derives from it."""
        lag, position = taken.lag, taken.message.position
        # Without the calls of `Message.end`: this is done for nearly every message.
        lag.read_to = [position[0], position[1] + 1]
        if lag.taken_by is self and lag not in self._by_lane:
            lag.position = lag.read_to

    def add(self, taken: TakenFromLane) -> None:
        """The filter has moved past a message: `move` tells when it is dealt with."""
        queue = self._by_lane.get(taken.lag)
        if queue is None:
            queue = self._by_lane[taken.lag] = deque()
        queue.append(taken)

    def move(self, lag: Lag) -> bool:
        """Move the lane's position past what is dealt with; whether anything derives from that."""
        if lag.taken_by is not self:
            return False
        queue = self._by_lane.get(lag)
        derived, last = 0, None
        while queue and not queue[0].unresolved:
            last = queue.popleft()
            derived += last.derived
            if lag.kept is not None:
                _note_passed(lag.kept, last)
        if not queue:
            if queue is not None:
                del self._by_lane[lag]
            if not lag.is_gone:
                # What lies between, if anything, is no message.
                lag.position = lag.read_to
        elif last is not None:
            lag.position = last.message.end if lag.kept is not None else queue[0].message.position
        return derived > 0

    def drop_from(self, taken: TakenFromLane) -> None:
        """It is read again, with what follows it in its lane."""
        queue = self._by_lane.get(taken.lag, deque())
        while queue and taken in queue:
            _drop(queue.pop())
        _drop(taken)
        if opened := self._open_of(taken.lag):
            _drop(opened)

    def forget(self, lag: Lag) -> None:
        """What was taken of this lane counts no more."""
        for taken in self._by_lane.pop(lag, ()):
            taken.is_dropped = True
        if opened := self._open_of(lag):
            opened.is_dropped = True

    def _open_of(self, lag: Lag) -> TakenFromLane | None:
        taken = self.open
        return taken if isinstance(taken, TakenFromLane) and taken.lag is lag else None


def _drop(taken: TakenFromLane) -> None:
    taken.is_dropped = True
    if taken.lag.kept is not None and taken.key is not None:
        taken.lag.kept.under_way.discard(taken.key)


def _note_passed(kept: KeptInLane, taken: TakenFromLane) -> None:
    """All that derives from it is durable: its row goes, if it has one. Of what is set aside it stays."""
    message = taken.message
    assert isinstance(message, QueueMessage)
    key = taken.key
    if message.id is None:
        key = kept.ahead.pop(message.position[1], None)
    if key is not None and taken.is_set_aside:
        kept.note_set_aside(key)
    elif key is not None:
        kept.note_passed(key)
    elif taken.key is not None:
        kept.under_way.discard(taken.key)
