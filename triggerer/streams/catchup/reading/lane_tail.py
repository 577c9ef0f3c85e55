"""The newest messages of a lane in which somebody is behind, as they were broadcast."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Protocol

from triggerer.domain.watchers.lane_positions import (
    Position,
    cut_before,
    cuts_known,
    following,
    is_before,
    is_same_log,
)

_MOST_BYTES: Final = 4 * 1024 * 1024


@dataclass(slots=True)
class Message:
    """A message of a log. Nobody changes one; to be frozen would cost each of them as much again."""

    position: Position
    event: Any
    payload: Any

    @property
    def end(self) -> Position:
        """What comes after it, whether there is a message or not."""
        return following(self.position)


class Waiting(Protocol):
    """Waits for a message."""

    def wake(self) -> None: ...


class LaneTail:
    """What was broadcast in one lane since somebody fell behind there, in order, the newest of it.

    Who has read up to here takes the next message from memory, and is then as far as the group: so that a reader can
    reach the head of a lane that moves on. A redelivery changes nothing. Shared by all that are behind in the lane.

    Args:
        after: What had been broadcast last when the first of them fell behind: a redelivery of that, or of what lies
            before it, does not adjoin what comes next.
        most: How many messages are kept, at most.
    """

    def __init__(self, after: Position | None = None, *, most: int) -> None:
        self._after = after
        self._most = most
        self._messages: deque[Message] = deque()
        self._sizes: deque[int] = deque()
        self._size_bytes = 0
        self._waiting: dict[Waiting, None] = {}
        self.before: Position | None = None
        """The last message that this group had broadcast when somebody fell behind; None: it is not known."""
        self.incarnation: Any = None
        """Of what was broadcast last, as the producer gave it; None if nothing was."""

    def record_earlier_broadcast(self, position: Position) -> None:
        """Somebody falls behind, and this had been broadcast."""
        if (
            self.before is None
            or not is_same_log(self.before, position)
            or is_before(self.before, position)
        ):
            self.before = position

    def record_incarnation(self, incarnation: Any) -> bool:
        """What is broadcast from now on has this one: forget what a log that was cut has lost.

        Returns:
            Whether it tells of a cut that was not known.
        """
        known, self.incarnation = cuts_known(self.incarnation), incarnation
        if all(cut in known for cut in cuts_known(incarnation)):
            return False
        while self._messages and _is_lost(self._messages[-1].position, incarnation):
            self._messages.pop()
            self._size_bytes -= self._sizes.pop()
        self._after = _left_of(self._after, incarnation)
        self.before = _left_of(self.before, incarnation)
        return True

    @property
    def newest(self) -> Position | None:
        """The position that was broadcast last; None if nothing was."""
        return self._messages[-1].position if self._messages else None

    def append(self, message: Message, size_bytes: int) -> None:
        if self._after is not None:
            if is_same_log(self._after, message.position) and not is_before(
                self._after, message.position
            ):
                return
            self._after = None
        newest = self.newest
        if newest is not None:
            if not is_same_log(newest, message.position):
                self._messages.clear()
                self._sizes.clear()
                self._size_bytes = 0
            elif not is_before(newest, message.position):
                return
        self._messages.append(message)
        self._sizes.append(size_bytes)
        self._size_bytes += size_bytes
        while len(self._messages) > self._most or (
            self._size_bytes > _MOST_BYTES and len(self._messages) > 1
        ):
            self._messages.popleft()
            self._size_bytes -= self._sizes.popleft()
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            for one in waiting:
                one.wake()

    def wake_once(self, waiting: Waiting) -> None:
        """Wake it when the next message is added."""
        self._waiting[waiting] = None

    def covers(self, position: Position) -> bool:
        """Whether what is at `position`, or else the first message after it, is here or is the next to be broadcast."""
        if not self._messages:
            return False
        oldest, newest = self._messages[0].position, self._messages[-1].position
        if not is_same_log(oldest, position) or is_before(position, oldest):
            return False
        # Its reader may know sooner than the poll that the log was cut.
        return position[0] is newest[0] or not _is_lost(newest, position[0])

    def after(self, position: Position, most: int) -> list[Message] | None:
        """The first messages at `position` or after it, in order; empty if none has been broadcast yet.

        None if it is not covered: also what was a moment ago may have had to make room since.
        """
        if not self.covers(position):
            return None
        at = bisect_left(self._messages, position[1], key=_number)
        return list(islice(self._messages, at, at + most))


def _number(message: Message) -> Any:
    return message.position[1]


def _is_lost(position: Position, incarnation: Any) -> bool:
    """Whether the message at a position is not in the log any more, as this incarnation says."""
    return cut_before(position, incarnation) is not None


def _left_of(last: Position | None, incarnation: Any) -> Position | None:
    """The last place before a cut, if the message at `last` was lost by it."""
    cut = None if last is None else cut_before(last, incarnation)
    return last if cut is None else [cut[0], cut[1] - 1]
