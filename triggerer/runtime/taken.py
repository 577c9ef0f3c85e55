"""What was given to a filter that catches up, until all that derives from it is durable."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from triggerer.domain.events import Fence
from triggerer.domain.parked import KeptMessage
from triggerer.runtime.kept_in_lane import KeptInLane
from triggerer.runtime.kept_reader import QueueMessage
from triggerer.runtime.lag import Lag
from triggerer.runtime.recent import Message


class Taken:
    """A message that was given to the filter."""

    __slots__ = ("event", "fence", "has_derived", "is_dropped", "is_rejected", "key", "unresolved")

    is_trial = False
    """Whether it is only tried: nothing that derives from it is stored."""

    def __init__(self, event: Any, key: str | None, fence: Fence) -> None:
        self.event = event
        self.key = key
        self.fence = fence
        self.unresolved = 1
        """One until the filter has moved past it, one for each derived event that is not durable, and one while it is
        being set aside."""
        self.has_derived = False
        self.is_rejected = False
        self.is_dropped = False
        """Whether what becomes of it counts no more: it is read again, since it failed or lies behind one that did."""

    @property
    def is_stale(self) -> bool:
        """Whether nothing that derives from it is to be stored any more."""
        return self.is_dropped or self.is_trial


class TakenFromLane(Taken):
    """A message of a lane in which the watcher is behind."""

    __slots__ = ("is_parked", "lag", "message")

    def __init__(self, lag: Lag, message: Message | QueueMessage, key: str | None) -> None:
        super().__init__(message.event, key, lag.fence)
        self.lag = lag
        self.message = message
        self.is_parked = False
        """Whether it is, or is being, set aside."""

    @property
    def is_stale(self) -> bool:
        return self.is_dropped or self.lag.is_gone


class Trial(Taken):
    """A message that is given to the filter to see whether it takes any."""

    __slots__ = ("lag",)

    is_trial = True

    def __init__(self, lag: Lag, message: Message | QueueMessage) -> None:
        super().__init__(message.event, None, lag.fence)
        self.lag = lag
        """Whose message has failed."""


class TakenAgain(Taken):
    """A message that was set aside, and is replayed."""

    __slots__ = ("kept",)

    def __init__(self, kept: KeptMessage, event: Any, fence: Fence) -> None:
        super().__init__(event, kept.key, fence)
        self.kept = kept


class TakenDerived:
    """An event that derives from a message. Implements `triggerer.domain.events.PendingEvent`."""

    __slots__ = ("_on_stored", "_taken")

    def __init__(self, taken: Taken, on_stored: Callable[[Taken, Exception | None], None]) -> None:
        self._taken = taken
        self._on_stored = on_stored

    def complete(self, error: Exception | None) -> None:
        self._on_stored(self._taken, error)


class TakenMessages:
    """The messages that are not resolved yet, by lane and in order."""

    def __init__(self) -> None:
        self._by_lane: dict[Lag, deque[TakenFromLane]] = {}

    def add(self, taken: TakenFromLane) -> None:
        queue = self._by_lane.get(taken.lag)
        if queue is None:
            queue = self._by_lane[taken.lag] = deque()
        queue.append(taken)

    def move(self, lag: Lag) -> bool:
        """Move the lane's position past what is resolved; whether anything derives from that."""
        if lag.taken_by is not self:
            return False
        queue = self._by_lane.get(lag)
        has_derived, last = False, None
        while queue and not queue[0].unresolved:
            last = queue.popleft()
            has_derived |= last.has_derived
            if lag.kept is not None:
                _note_passed(lag.kept, last)
        if queue is not None and not queue:
            del self._by_lane[lag]
        if not queue and not lag.is_gone:
            # What lies between, if anything, is no message.
            lag.position = lag.read_to
        elif last is not None:
            lag.position = last.message.end
        return has_derived

    def drop_from(self, taken: TakenFromLane) -> None:
        """It is read again, with what follows it in its lane."""
        queue = self._by_lane.get(taken.lag, deque())
        while queue and taken in queue:
            dropped = queue.pop()
            dropped.is_dropped = True
            if dropped.lag.kept is not None and dropped.key is not None:
                dropped.lag.kept.under_way.discard(dropped.key)
        taken.is_dropped = True

    def forget(self, lag: Lag) -> None:
        """What was taken of this lane counts no more."""
        for taken in self._by_lane.pop(lag, ()):
            taken.is_dropped = True


def _note_passed(kept: KeptInLane, taken: TakenFromLane) -> None:
    """All that derives from it is durable: its row goes, if it has one."""
    message = taken.message
    assert isinstance(message, QueueMessage)
    key = taken.key
    if message.id is None:
        key = kept.ahead.pop(message.position[1], None)
    if key is not None:
        kept.note_passed(key)
    elif taken.key is not None:
        kept.under_way.discard(taken.key)
