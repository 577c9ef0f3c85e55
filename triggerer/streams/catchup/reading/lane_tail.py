"""The newest messages of a lane in memory, for watchers that have nearly caught up in the lane."""

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
class LogMessage:
    """A message of a log. Do not change its fields. The class is not frozen, because that would double its cost."""

    position: Position
    event: Any
    payload: Any

    @property
    def end(self) -> Position:
        """The position after the message."""
        return following(self.position)


class Waiting(Protocol):
    """A reader that waits for the next message."""

    def wake(self) -> None: ...


class LaneTail:
    """The newest messages that were broadcast in a lane after a watcher fell behind in the lane, in order.

    All backlogs of the lane share these messages.

    A watcher that has read the log up to the oldest of these messages continues in memory. Otherwise the watcher might
    never reach the end of a busy lane. Redelivered messages are not added again.

    Args:
        after: The position of the last message that was broadcast before the first watcher fell behind. A redelivered
            message up to this position is not added. Otherwise the tail would have gaps.
        most: The most messages in memory.
    """

    def __init__(self, after: Position | None = None, *, most: int) -> None:
        self._after = after
        self._most = most
        self._messages: deque[LogMessage] = deque()
        self._sizes: deque[int] = deque()
        self._size_bytes = 0
        self._waiting: dict[Waiting, None] = {}
        self.before: Position | None = None
        """The last message that was broadcast before a watcher fell behind, as a position. None: not known."""
        self.incarnation: Any = None
        """The incarnation of the last broadcast, from the producer. None: there was no broadcast."""

    def record_earlier_broadcast(self, position: Position) -> None:
        """Record the position of the last message that was broadcast before a watcher fell behind."""
        if (
            self.before is None
            or not is_same_log(self.before, position)
            or is_before(self.before, position)
        ):
            self.before = position

    def record_incarnation(self, incarnation: Any) -> bool:
        """Use this incarnation of the lane from now on.

        If it lists a new cut (a lost end of the log), forget the messages that the log has lost.

        Returns:
            True if the incarnation lists a new cut.
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
        """The position of the newest broadcast. None: there was no broadcast."""
        return self._messages[-1].position if self._messages else None

    def append(self, message: LogMessage, size_bytes: int) -> None:
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
        """Wake the waiter when the next message is added."""
        self._waiting[waiting] = None

    def covers(self, position: Position) -> bool:
        """Return whether the first message at or after `position` is in memory, or is the next broadcast."""
        if not self._messages:
            return False
        oldest, newest = self._messages[0].position, self._messages[-1].position
        if not is_same_log(oldest, position) or is_before(position, oldest):
            return False
        # The log's reader may see a cut (a lost end of the log) before the poll does. Then the tail may still contain
        # lost messages, and must not be used.
        return position[0] is newest[0] or not _is_lost(newest, position[0])

    def after(self, position: Position, most: int) -> list[LogMessage] | None:
        """Return the first messages at or after `position`, in order. Empty: no such message was broadcast yet.

        None: the tail does not reach back to `position`, or has no message, so the log must be read.
        """
        if not self.covers(position):
            return None
        at = bisect_left(self._messages, position[1], key=_number)
        return list(islice(self._messages, at, at + most))


def _number(message: LogMessage) -> Any:
    return message.position[1]


def _is_lost(position: Position, incarnation: Any) -> bool:
    """Return whether the log has lost the message at a position, according to the cuts of this incarnation."""
    return cut_before(position, incarnation) is not None


def _left_of(last: Position | None, incarnation: Any) -> Position | None:
    """Return `last`, or the last position before a cut that lost the message at `last`."""
    cut = None if last is None else cut_before(last, incarnation)
    return last if cut is None else [cut[0], cut[1] - 1]
