"""The backlog of one watcher in one lane. Synchronous, no I/O."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from triggerer.backoff import Backoff
from triggerer.domain.events import Fence, WatcherRef
from triggerer.domain.watchers.lane_positions import Position, Reemission, is_before
from triggerer.streams.catchup.backlogs.stored_lane import StoredLane


class InFlightTracker(Protocol):
    """The messages that a filter has received and whose derived events are not all durable."""

    def forget(self, backlog: Backlog) -> None:
        """Ignore the outcomes of the messages that were read from this lane."""


@dataclass(slots=True, eq=False)
class Blocked:
    """The message at which a lane waits, because the store refuses its events and the message cannot be parked."""

    position: Position
    backoff: Backoff
    until: float = -math.inf
    """When the message is tried again, by the monotonic clock."""


@dataclass(slots=True, eq=False)
class Backlog:
    """The messages that one watcher misses in one lane."""

    watcher: WatcherRef
    lane: Hashable
    stored_as: str
    """The lane as the store writes it."""
    since: datetime
    fence: Fence
    """The lease under which the position is stored."""
    position: Position
    """The first message whose events are not all durable. The store may have an earlier position."""
    cursor: Position
    """The first message that the watcher's catch-up filter has not passed. Never before `position`."""
    failures: int = 0
    """How often the filter has failed with the message at `cursor`."""
    log_end: int | None = None
    """The number that the log's next message will probably have. It is only shown to users."""
    end: Position | None = None
    """The position of the lane's end, looked up after the watcher fell behind. None: this group has not looked it up
    yet.
    """
    broadcast_to: Position | None = None
    """The last message of the lane that was broadcast before the watcher fell behind. None: not known."""
    is_stored: bool = False
    """True if a position is durable. Until then the broker must not advance, because a crash would lose the backlog."""
    is_caught_up: bool = False
    """True if the watcher has caught up: the live filter receives the broadcasts from `cursor` on.

    The backlog and its row remain until the broker has advanced to `cursor`.
    """
    is_gone: bool = False
    """True if this object is no longer used: the backlog was dropped, or a newer object has replaced this one."""
    stored_at: float = -math.inf
    """When the position was last submitted to the sink, by the monotonic clock."""
    is_being_written: bool = False
    is_dirty: bool = False
    """Whether the position has moved since it was last submitted to the sink."""
    reemit: Reemission | None = None
    """The range of messages for which a replay makes events again, under other keys. None: there is no such replay."""
    rewound_to: Position | None = None
    """The position to which a replay has rewound the watcher, until the broker has advanced to this position.

    The broker's position may be before `rewound_to`. Then the poll broadcasts a message that is not in the backlog. So
    the broadcast rewinds the watcher to this message.
    """
    in_flight_by: InFlightTracker | None = None
    """The messages that the present reader has handed out. Only their outcomes move the position."""
    blocked: Blocked | None = None
    """The message at which the lane waits, because its events are refused and it cannot be parked.

    The backlog keeps the message, because the catch-up may end before the store has answered.
    """
    gap: tuple[Position, Position] | None = None
    """The last stretch of the log that has no messages, for instance after compaction: its beginning and its end."""
    stored_lane: StoredLane | None = None
    """For a queue: the watcher's progress through the lane's stored messages. None: the upstream is a log.

    A queue's positions are `[None, number of the event in the group]`, and are not stored.
    """

    @property
    def is_reemitting(self) -> bool:
        """True if events must still be made again for some messages."""
        return self.reemit is not None and is_before(self.cursor, self.reemit.until)

    @property
    def position_before_gap(self) -> Position:
        """`position`, or the beginning of a stretch without messages if such a stretch ends at `position`.

        The broker never advances past a stretch without messages, so compare this value with the broker's position.
        """
        gap = self.gap
        return gap[0] if gap is not None and gap[1] == self.position else self.position

    @property
    def stored_position(self) -> Position:
        """The position that is stored: usually `position`.

        If a stretch without messages ends at `position`, the beginning of the stretch is stored. For example, messages
        5 to 9 were compacted, and the watcher is at 10. The broker may never advance beyond 5. With 10 in the store, a
        later owner could wait for ever for an advance to 10. So 5 is stored.

        If the filter has failed with message 10, then 10 is stored, together with the count of failures.
        """
        has_failed = self.failures and self.position == self.cursor
        return self.position if has_failed else self.position_before_gap

    @property
    def stored_log_end(self) -> int | None:
        """The value for `PositionChange.log_end`.

        Users see `log_end - stored_position` as the number of missed messages. If no message is left, the value is the
        number of `stored_position`, so that users see zero.
        """
        log_end = self.log_end
        is_over = log_end is not None and log_end <= self.position[1]
        return self.stored_position[1] if is_over else log_end

    @property
    def blocked_until(self) -> float:
        """The time at which the lane may be read again, by the monotonic clock."""
        blocked = self.blocked
        is_there = blocked is not None and blocked.position == self.cursor
        return blocked.until if blocked is not None and is_there else -math.inf

    def try_now(self) -> None:
        """End the delay of a blocked message, so that it is tried again at once."""
        if self.blocked is not None:
            self.blocked.until = -math.inf
