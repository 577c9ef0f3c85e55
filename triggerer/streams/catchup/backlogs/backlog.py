"""One watcher in one lane in which it has fallen behind. Synchronous, no I/O."""

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
    """Messages that were read from lanes and are not durable yet; see `catchup.processing.in_flight`."""

    def forget(self, backlog: Backlog) -> None:
        """What was taken of this lane counts no more."""


@dataclass(slots=True, eq=False)
class Blocked:
    """A message for which there is no room: the store refuses what derives from it, and it cannot be set aside."""

    position: Position
    backoff: Backoff
    until: float = -math.inf
    """When it is tried again, by the monotonic clock."""


@dataclass(slots=True, eq=False)
class Backlog:
    """One watcher in one lane in which it has fallen behind."""

    watcher: WatcherRef
    lane: Hashable
    stored_as: str
    """The lane, as it is stored."""
    since: datetime
    fence: Fence
    """The lease under which its position is stored."""
    position: Position
    """The first message whose events are not all durable. What is stored is `stored_position`, or lies before that."""
    cursor: Position
    """The first message that it has not resolved; at `position` or later."""
    failures: int = 0
    """How often it has failed with the message at `cursor` open."""
    head: int | None = None
    """The number that the lane's next message will have, as far as is known, for those who look."""
    end: Position | None = None
    """Where the lane ended at some time since the watcher is behind there; None: not known in this group."""
    broadcast_to: Position | None = None
    """The last message of the lane that had been broadcast when it fell behind; None: it is not known."""
    is_stored: bool = False
    """Whether a position is durable: before, the broker must not be advanced."""
    is_caught_up: bool = False
    """Whether it has caught up: the live filter gets what is broadcast from `cursor` on.

    The row goes once the broker was advanced to there."""
    is_gone: bool = False
    """Whether it counts no more: the watcher is no longer behind, or was deleted."""
    stored_at: float = -math.inf
    """When the position was given to the sink last, by the monotonic clock."""
    is_being_written: bool = False
    is_dirty: bool = False
    """Whether its position has moved since it was last given to the sink."""
    reemit: Reemission | None = None
    """What it makes again, if it was set back for that."""
    rewound_to: Position | None = None
    """Where it was set back to, until the broker was advanced to there: it may have missed what lies before.

    If that is broadcast, it is set back further: who asked for a replay knew nothing of the group's place."""
    in_flight_by: InFlightTracker | None = None
    """Who reads it, and moves its position: what others have read of it before counts no more."""
    blocked: Blocked | None = None
    """Where it stands, until that is settled. Known here, since whoever catches up may end before the store answers."""
    gap: tuple[Position, Position] | None = None
    """Between which places of a log it has found no message last."""
    stored_lane: StoredLane | None = None
    """Where the source is a queue: its positions are `[None, number of the event in the group]`, and are not stored."""

    @property
    def is_reemitting(self) -> bool:
        """Whether it has not read to the end of what it makes again."""
        return self.reemit is not None and is_before(self.cursor, self.reemit.until)

    @property
    def last_end(self) -> Position:
        """What comes after the last message before `position`: the broker is never advanced past what holds none."""
        gap = self.gap
        return gap[0] if gap is not None and gap[1] == self.position else self.position

    @property
    def stored_position(self) -> Position:
        """What is stored: a later owner passes places without a message once more, since it has to know of them.

        Not where it has failed with a message behind them: that is counted there.
        """
        has_failed = self.failures and self.position == self.cursor
        return self.position if has_failed else self.last_end

    @property
    def stored_head(self) -> int | None:
        """`head`; where nothing is left behind `position`, that of what is stored: what lies between is no message."""
        head = self.head
        is_over = head is not None and head <= self.position[1]
        return self.stored_position[1] if is_over else head

    @property
    def blocked_until(self) -> float:
        """When it may be read on, by the monotonic clock."""
        blocked = self.blocked
        is_there = blocked is not None and blocked.position == self.cursor
        return blocked.until if blocked is not None and is_there else -math.inf

    def try_now(self) -> None:
        """Wait no longer for what it is blocked at."""
        if self.blocked is not None:
            self.blocked.until = -math.inf
