"""The backlogs of one stream: watchers, lanes and positions. Synchronous, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

from triggerer.domain.events import EventSource, Fence, WatcherRef
from triggerer.domain.watchers.lane_positions import (
    LanePosition,
    Position,
    PositionSink,
    Reemission,
    decode_lane,
    encode_lane,
    is_before,
)
from triggerer.streams.catchup.backlogs.backlog import Backlog
from triggerer.streams.catchup.backlogs.position_writes import PositionWrites


def _ignore(_: Exception | None) -> None:
    pass


class Backlogs:
    """The backlogs of one stream, across its groups.

    Args:
        sink: Stores the positions. Without a sink, no watcher may fall behind: the broker redelivers a failed message
            to all watchers.
        may_grow: If false, no further watcher may fall behind. The existing backlogs are read to their end.
        on_change: Called with a watcher when it falls behind or has caught up, or when one of its backlogs has changed.
        on_readable: Called with a backlog when it may be read, and again when its lane may have more messages.
        on_settled: Called with a backlog that has caught up, once every event up to its position is durable.
    """

    def __init__(
        self,
        sink: PositionSink | None,
        on_change: Callable[[WatcherRef], None] | None = None,
        on_readable: Callable[[Backlog], None] | None = None,
        on_settled: Callable[[Backlog], None] | None = None,
        *,
        may_grow: bool = True,
    ) -> None:
        self.may_grow = may_grow and sink is not None
        self.is_enabled = sink is not None
        """True if there is a sink for positions, so that a watcher can fall behind."""
        self.writes = PositionWrites(sink)
        self._on_change = on_change
        self._on_readable = on_readable
        self._on_settled = on_settled
        self.by_lane: dict[Hashable, dict[int, Backlog]] = {}
        """The backlogs by lane and watcher id."""
        self.advanced_to: dict[Hashable, Position] = {}
        """By lane, the last position to which the broker has advanced while the lane had backlogs."""
        self.live: dict[Hashable, dict[Backlog, None]] = {}
        """By lane, the backlogs that have caught up, but whose rows are not deleted yet."""
        self.rewound: dict[Hashable, dict[Backlog, None]] = {}
        """By lane, the backlogs whose `Backlog.rewound_to` is set."""
        self.rewinding: set[int] = set()
        """The ids of watchers with an open replay. Each reads no backlog until its new positions are durable."""
        self._by_watcher: dict[int, dict[Hashable, Backlog]] = {}
        self._behind: dict[int, dict[Backlog, None]] = {}
        """By watcher id, the backlogs that have not caught up."""

    def __bool__(self) -> bool:
        return bool(self.by_lane)

    def lanes_of(self, watcher_id: int) -> list[Backlog]:
        """Return the watcher's backlogs, including caught-up ones whose rows still exist."""
        return list(self._by_watcher.get(watcher_id, {}).values())

    def behind(self, watcher_id: int) -> Iterator[Backlog]:
        """Yield the watcher's backlogs that have not caught up."""
        return iter(list(self._behind.get(watcher_id, ())))

    def count_behind(self, watcher_id: int) -> int:
        """Return the number of lanes in which this watcher has not caught up."""
        return len(self._behind.get(watcher_id, ()))

    def may_catch_up(self, watcher_id: int) -> bool:
        """Return whether `to_catch_up` is not empty."""
        return watcher_id not in self.rewinding and any(
            backlog.is_stored for backlog in self._behind.get(watcher_id, ())
        )

    def to_catch_up(self, watcher_id: int) -> list[Backlog]:
        """Return the backlogs that the watcher may read: the position is durable, and no replay is open."""
        if watcher_id in self.rewinding:
            return []
        return [backlog for backlog in self.behind(watcher_id) if backlog.is_stored]

    def find(self, lane: Hashable, watcher_id: int) -> Backlog | None:
        return self.by_lane.get(lane, {}).get(watcher_id)

    def load(self, watcher: WatcherRef, fence: Fence, row: LanePosition) -> None:
        """Add a backlog from the store, unless the watcher has a newer backlog in this lane."""
        lane = decode_lane(row.lane)
        if self.find(lane, watcher.watcher_id) is None:
            self._add(
                Backlog(
                    watcher,
                    lane,
                    row.lane,
                    row.since,
                    fence,
                    row.position,
                    row.position,
                    row.failures,
                    is_stored=True,
                    reemit=row.reemit,
                    rewound_to=row.rewound_to,
                )
            )

    def fall_behind(
        self,
        watcher: WatcherRef,
        lane: Hashable,
        position: Position,
        fence: Fence,
        now: datetime,
        on_stored: Callable[[Exception | None], None],
        *,
        broadcast_to: Position | None = None,
    ) -> bool:
        """Let the watcher catch up from `position`, or from its earlier position if it is behind already.

        Return False if the lane cannot be stored, because its key is not JSON.

        Args:
            broadcast_to: See `Backlog.broadcast_to`.
            on_stored: Called once, when the position is durable or was refused.
        """
        stored_as = encode_lane(lane)
        if stored_as is None:
            return False
        backlog = self.find(lane, watcher.watcher_id)
        if backlog is None:
            backlog = Backlog(watcher, lane, stored_as, now, fence, position, position)
            self._add(backlog)
        elif backlog.is_caught_up and is_before(backlog.position, backlog.cursor):
            # The watcher had caught up, but some of its events are not durable. It reads the messages of these events
            # again.
            backlog = self._replace(backlog, backlog.position, now)
        else:
            backlog.since = now if backlog.is_caught_up else backlog.since
            if backlog.is_caught_up or not is_before(backlog.position, position):
                backlog.position = backlog.cursor = position
                backlog.gap = None
            backlog.is_dirty = False
            backlog.failures = 0
            backlog.end = None
            self.leave_live(backlog)
        backlog.broadcast_to = broadcast_to
        self._store(backlog, on_stored)
        return True

    def _replace(
        self, backlog: Backlog, position: Position, now: datetime, **changes: Any
    ) -> Backlog:
        """Replace a backlog by a new object.

        Messages in flight refer to the old object, so their outcomes are ignored from now on.
        """
        new = replace(
            backlog,
            since=now if backlog.is_caught_up else backlog.since,
            position=position,
            cursor=position,
            end=None,
            is_caught_up=False,
            is_being_written=False,
            is_dirty=False,
            failures=0,
            gap=None,
            **changes,
        )
        self.leave_live(backlog)
        self._unwatch(backlog)
        backlog.is_gone = True
        self._update_behind(backlog)
        self._add(new)
        return new

    def _store(self, backlog: Backlog, on_stored: Callable[[Exception | None], None]) -> None:
        def on_answer(error: Exception | None) -> None:
            if error is None:
                backlog.is_stored = True
            elif not backlog.is_stored:
                self.forget(backlog)
            on_stored(error)
            self.record_change(backlog)

        self.writes.submit(backlog, backlog.stored_position, on_answer)

    def go_live(self, backlog: Backlog) -> None:
        """Record that the watcher has caught up in this lane: its live filter continues at `cursor`."""
        backlog.is_caught_up = True
        self._update_behind(backlog)
        self.live.setdefault(backlog.lane, {})[backlog] = None
        self.record_change(backlog)

    # Rewinding

    def enter(self, backlog: Backlog) -> None:
        """Add a backlog whose position is durable already, or is never stored, as in a queue."""
        self._add(backlog)
        self.record_change(backlog)

    def all(self) -> list[Backlog]:
        return [backlog for backlogs in self.by_lane.values() for backlog in backlogs.values()]

    def rewind_from(
        self,
        backlog: Backlog,
        position: Position,
        reemit: Reemission | None,
        now: datetime,
        on_stored: Callable[[Exception | None], None] = _ignore,
    ) -> None:
        """Let a watcher read again from `position`. The outcomes of messages in flight are ignored.

        Args:
            reemit: The messages for which the watcher creates events again, under other keys. None: for no messages.
            on_stored: Called once, when the position is durable or was refused. Until then the store has the earlier
                position.
        """
        if backlog.rewound_to is not None and is_before(position, backlog.position):
            # The poll may broadcast the message at `position` (see `Backlog.rewound_to`), and the
            # stored position is after this message. The broker must not advance past the message
            # until `position` is durable.
            backlog.is_stored = False
        moved_to = None if position == backlog.position and not backlog.is_caught_up else position
        new = self._replace(
            backlog, position, now, reemit=reemit, rewound_to=moved_to or backlog.rewound_to
        )
        self._store(new, on_stored)

    def record_broadcast(self, lane: Hashable, position: Position, now: datetime) -> None:
        """Rewind watchers to a message that will be broadcast now, if it is before their `Backlog.rewound_to`."""
        for backlog in list(self.rewound.get(lane, ())):
            if backlog.rewound_to is not None and is_before(position, backlog.rewound_to):
                self.rewind_from(backlog, position, backlog.reemit, now)

    def mark_advanced(self, lane: Hashable, reached: Position) -> None:
        """Record how far the broker has advanced in a lane that has backlogs."""
        before = self.advanced_to.get(lane)
        if before is None or not is_before(reached, before):
            self.advanced_to[lane] = reached
        for backlog in list(self.rewound.get(lane, ())):
            if backlog.rewound_to is not None and not is_before(reached, backlog.rewound_to):
                self._unwatch(backlog)

    def _unwatch(self, backlog: Backlog) -> None:
        backlog.rewound_to = None
        watched = self.rewound.get(backlog.lane, {})
        watched.pop(backlog, None)
        if not watched:
            self.rewound.pop(backlog.lane, None)

    def leave_live(self, backlog: Backlog) -> None:
        """Count a backlog as not caught up, because the watcher is behind again or the backlog is forgotten."""
        backlog.is_caught_up = False
        live = self.live.get(backlog.lane, {})
        live.pop(backlog, None)
        if not live:
            self.live.pop(backlog.lane, None)
        self._update_behind(backlog)

    def _update_behind(self, backlog: Backlog) -> None:
        watcher_id = backlog.watcher.watcher_id
        behind = self._behind.get(watcher_id)
        if not (backlog.is_caught_up or backlog.is_gone):
            if behind is None:
                behind = self._behind[watcher_id] = {}
            behind[backlog] = None
        elif behind is not None:
            behind.pop(backlog, None)
            if not behind:
                del self._behind[watcher_id]

    def end(self, backlog: Backlog) -> None:
        """Forget a backlog and delete its row: the broker has advanced to its position."""
        self.forget(backlog)
        if backlog.stored_lane is None:
            self.writes.submit(backlog, None, _ignore)

    def forget(self, backlog: Backlog) -> None:
        """Forget a backlog. If the store has a row for it, the caller decides about the row."""
        backlog.is_gone = True
        self.leave_live(backlog)
        self._unwatch(backlog)
        watcher_id = backlog.watcher.watcher_id
        in_lane = self.by_lane.get(backlog.lane, {})
        if in_lane.get(watcher_id) is backlog:
            del in_lane[watcher_id]
            if not in_lane:
                del self.by_lane[backlog.lane]
                self.advanced_to.pop(backlog.lane, None)
            of_watcher = self._by_watcher[watcher_id]
            del of_watcher[backlog.lane]
            if not of_watcher:
                del self._by_watcher[watcher_id]

    def forget_watchers(self, watchers: Iterable[WatcherRef]) -> None:
        """Forget the backlogs of watchers that were deleted or have left the stream.

        The backlogs' rows are already deleted from the store.
        """
        for watcher in watchers:
            for backlog in self.lanes_of(watcher.watcher_id):
                self.forget(backlog)

    def live_source(
        self, source: EventSource, lane: Hashable, position: Position
    ) -> EventSource | None:
        """Return an event source with the watchers that are live at this position. None: all watchers are behind.

        If the live filter derives events from the message at this position, only these watchers get
        the events.
        """
        from_lane = self.by_lane.get(lane)
        if from_lane is None:
            return source
        reading = tuple(
            watcher
            for watcher in source.watchers
            if (backlog := from_lane.get(watcher.watcher_id)) is None or _reads(backlog, position)
        )
        if len(reading) == len(source.watchers):
            return source
        return EventSource(reading, source.fence) if reading else None

    def are_stored(self, source: EventSource, lane: Hashable) -> bool:
        """Return whether all watchers of the event source that are behind in the lane have durable positions."""
        backlogs = self.by_lane.get(lane, {})
        return all(
            backlog.is_stored
            for watcher in source.watchers
            if (backlog := backlogs.get(watcher.watcher_id)) is not None
        )

    def _add(self, backlog: Backlog) -> None:
        self.by_lane.setdefault(backlog.lane, {})[backlog.watcher.watcher_id] = backlog
        self._by_watcher.setdefault(backlog.watcher.watcher_id, {})[backlog.lane] = backlog
        self._update_behind(backlog)
        if backlog.rewound_to is not None:
            self.rewound.setdefault(backlog.lane, {})[backlog] = None

    def record_change(self, backlog: Backlog) -> None:
        """Call `on_change`, and `on_readable` if the backlog may be read, because the backlog has changed."""
        if (
            self._on_readable is not None
            and backlog.is_stored
            and not (backlog.is_caught_up or backlog.is_gone)
        ):
            self._on_readable(backlog)
        if self._on_change is not None:
            self._on_change(backlog.watcher)

    def mark_settled(self, backlog: Backlog) -> None:
        """Call `on_settled`: every event of a caught-up backlog is durable, including events of earlier groups."""
        if self._on_settled is not None:
            self._on_settled(backlog)


def _reads(backlog: Backlog, position: Position) -> bool:
    return backlog.is_caught_up and not is_before(position, backlog.cursor)
