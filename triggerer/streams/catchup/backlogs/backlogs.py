"""Which watchers of a stream are behind in which lane, and where they stand. Synchronous, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

from triggerer.domain.events import EventSource, Fence, WatcherRef
from triggerer.domain.watchers.lane_positions import (
    LanePosition,
    Position,
    PositionChange,
    PositionSink,
    Reemission,
    ReplayEnd,
    decode_lane,
    encode_lane,
    is_before,
)
from triggerer.errors import LeaseLost
from triggerer.streams.catchup.backlogs.backlog import Backlog


def _ignore(_: Exception | None) -> None:
    pass


class Backlogs:
    """The lags of one stream, across its groups.

    Args:
        sink: Where positions are stored; None: nobody falls behind, and the broker redelivers to all.
        may_grow: False: nobody falls behind from now on. Who is behind already still catches up.
        on_change: Called when a watcher falls behind, has caught up, or when what is known of that changes.
        on_readable: Called with a lane that a watcher may read again, and when there may be more in it.
        on_settled: Called with one that has caught up, when all is durable that it has taken up to its position.
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
        """Whether a watcher may fall behind at all."""
        self._sink = sink
        self._is_closed = False
        self._on_change = on_change
        self._on_readable = on_readable
        self._on_settled = on_settled
        self.by_lane: dict[Hashable, dict[int, Backlog]] = {}
        """By lane and the watcher's id."""
        self.advanced_to: dict[Hashable, Position] = {}
        """By lane of these how far the broker was advanced since the first of them is there, if it was."""
        self.live: dict[Hashable, dict[Backlog, None]] = {}
        """By lane those that have caught up, and whose rows are still to go."""
        self.rewound: dict[Hashable, dict[Backlog, None]] = {}
        """By lane those that have `Backlog.rewound_to`."""
        self.rewinding: set[int] = set()
        """Watchers that are being set back: until that is durable they read nothing again."""
        self._by_watcher: dict[int, dict[Hashable, Backlog]] = {}
        self._behind: dict[int, dict[Backlog, None]] = {}
        """By watcher those of its lanes in which it has not caught up."""

    def close(self) -> None:
        """Store nothing more, whatever becomes durable: the stream may run anew, under the same lease."""
        self._is_closed = True

    @property
    def is_enabled(self) -> bool:
        """Whether positions are stored, so that somebody can be behind."""
        return self._sink is not None

    def __bool__(self) -> bool:
        return bool(self.by_lane)

    def lanes_of(self, watcher_id: int) -> list[Backlog]:
        """All lanes in which the watcher is behind, or was."""
        return list(self._by_watcher.get(watcher_id, {}).values())

    def watchers(self) -> set[WatcherRef]:
        """Those that are behind in some lane, or were."""
        return {next(iter(of_watcher.values())).watcher for of_watcher in self._by_watcher.values()}

    def behind(self, watcher_id: int) -> Iterator[Backlog]:
        """The lanes in which the watcher is behind."""
        return iter(list(self._behind.get(watcher_id, ())))

    def count_behind(self, watcher_id: int) -> int:
        """In how many lanes the watcher is behind."""
        return len(self._behind.get(watcher_id, ()))

    def may_catch_up(self, watcher_id: int) -> bool:
        """Whether there is something in `to_catch_up`."""
        return watcher_id not in self.rewinding and any(
            backlog.is_stored for backlog in self._behind.get(watcher_id, ())
        )

    def to_catch_up(self, watcher_id: int) -> list[Backlog]:
        """The lanes that the watcher may read again: it is behind there, and that is durable."""
        if watcher_id in self.rewinding:
            return []
        return [backlog for backlog in self.behind(watcher_id) if backlog.is_stored]

    def find(self, lane: Hashable, watcher_id: int) -> Backlog | None:
        return self.by_lane.get(lane, {}).get(watcher_id)

    def load(self, watcher: WatcherRef, fence: Fence, row: LanePosition) -> None:
        """Take over what is stored, unless it is known here already, and newer."""
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
        """Have the watcher catch up from `position` on; False if that lane cannot be stored.

        Args:
            broadcast_to: See `Backlog.broadcast_to`.
            on_stored: Called once that is durable, or will not be.
        """
        stored_as = encode_lane(lane)
        if stored_as is None:
            return False
        backlog = self.find(lane, watcher.watcher_id)
        if backlog is None:
            backlog = Backlog(watcher, lane, stored_as, now, fence, position, position)
            self._add(backlog)
        elif backlog.is_caught_up and is_before(backlog.position, backlog.cursor):
            # It had caught up, and not all of that is durable: it reads again from there, and what it took counts no
            # more.
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
        """Replace a lag by a new one, of which nothing was taken yet."""
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
        self._record_position(backlog)
        self._add(new)
        return new

    def _store(self, backlog: Backlog, on_stored: Callable[[Exception | None], None]) -> None:
        def note(error: Exception | None) -> None:
            if error is None:
                backlog.is_stored = True
            elif not backlog.is_stored:
                self.forget(backlog)
            on_stored(error)
            self.record_change(backlog)

        self._submit(backlog, backlog.stored_position, note)

    def move(self, backlog: Backlog) -> None:
        """Store the lag's position, as soon as the last one that was submitted is durable."""
        if backlog.stored_lane is not None:
            return
        if backlog.is_being_written:
            backlog.is_dirty = True
        elif not backlog.is_gone:
            backlog.is_dirty, backlog.is_being_written = False, True

            def note(error: Exception | None) -> None:
                backlog.is_being_written = False
                if backlog.is_dirty and error is None:
                    self.move(backlog)

            self._submit(backlog, backlog.stored_position, note)

    def go_live(self, backlog: Backlog) -> None:
        """It has caught up: the live filter reads on from `cursor`."""
        backlog.is_caught_up = True
        self._record_position(backlog)
        self.live.setdefault(backlog.lane, {})[backlog] = None
        self.record_change(backlog)

    # Being set back

    def store_ahead(self, backlog: Backlog, on_stored: Callable[[Exception | None], None]) -> None:
        """Store the position of a lag that is not entered yet; once that is durable the caller enters it."""
        backlog.is_stored = True
        self._submit(backlog, backlog.stored_position, on_stored)

    def enter(self, backlog: Backlog) -> None:
        """Count a watcher as behind in a lane from now on. Its position is durable, or need not be stored."""
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
        """Have a watcher read again from an earlier position, or with other keys; what was taken since counts no more.

        Args:
            on_stored: Called once that is durable, or will not be. Before, no less is durable than was.
        """
        if backlog.rewound_to is not None and is_before(position, backlog.position):
            # What lies before that it may have missed, and nothing of it is durable.
            backlog.is_stored = False
        place = None if position == backlog.position and not backlog.is_caught_up else position
        new = self._replace(
            backlog, position, now, reemit=reemit, rewound_to=place or backlog.rewound_to
        )
        self._store(new, on_stored)

    def record_broadcast(self, lane: Hashable, position: Position, now: datetime) -> None:
        """Set back further whoever was set back and may have missed this message, which is about to be broadcast."""
        for backlog in list(self.rewound.get(lane, ())):
            if backlog.rewound_to is not None and is_before(position, backlog.rewound_to):
                self.rewind_from(backlog, position, backlog.reemit, now)

    def mark_advanced(self, lane: Hashable, reached: Position) -> None:
        """The broker was advanced to there, in a lane in which somebody is behind, or was."""
        before = self.advanced_to.get(lane)
        if before is None or not is_before(reached, before):
            self.advanced_to[lane] = reached
        for backlog in list(self.rewound.get(lane, ())):
            if backlog.rewound_to is not None and not is_before(reached, backlog.rewound_to):
                self._unwatch(backlog)

    def submit_end(self, end: ReplayEnd) -> None:
        """Have the row of a request deleted."""
        assert self._sink is not None
        self._sink.end_replay_nowait(end)

    def _unwatch(self, backlog: Backlog) -> None:
        backlog.rewound_to = None
        watched = self.rewound.get(backlog.lane, {})
        watched.pop(backlog, None)
        if not watched:
            self.rewound.pop(backlog.lane, None)

    def leave_live(self, backlog: Backlog) -> None:
        """Take a lag out of those that have caught up: it is behind again, or forgotten."""
        backlog.is_caught_up = False
        live = self.live.get(backlog.lane, {})
        live.pop(backlog, None)
        if not live:
            self.live.pop(backlog.lane, None)
        self._record_position(backlog)

    def _record_position(self, backlog: Backlog) -> None:
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
        """Forget a lag, and delete its row: the broker was advanced to where it stands."""
        self.forget(backlog)
        if backlog.stored_lane is None:
            self._submit(backlog, None, _ignore)

    def forget(self, backlog: Backlog) -> None:
        """Drop a lag from memory. Its row stays, for others to delete."""
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
        """They were deleted, and their rows with them."""
        for watcher in watchers:
            for backlog in self.lanes_of(watcher.watcher_id):
                self.forget(backlog)

    def live_source(
        self, source: EventSource, lane: Hashable, position: Position
    ) -> EventSource | None:
        """Return to which watchers a live filter's events of a message go: those not behind there. None: to nobody."""
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
        """Whether the position of each of the source's watchers that is behind in the lane is durable."""
        backlogs = self.by_lane.get(lane, {})
        return all(
            backlog.is_stored
            for watcher in source.watchers
            if (backlog := backlogs.get(watcher.watcher_id)) is not None
        )

    def _add(self, backlog: Backlog) -> None:
        self.by_lane.setdefault(backlog.lane, {})[backlog.watcher.watcher_id] = backlog
        self._by_watcher.setdefault(backlog.watcher.watcher_id, {})[backlog.lane] = backlog
        self._record_position(backlog)
        if backlog.rewound_to is not None:
            self.rewound.setdefault(backlog.lane, {})[backlog] = None

    def record_change(self, backlog: Backlog) -> None:
        """Tell those who were handed in that something of a lag has changed."""
        if (
            self._on_readable is not None
            and backlog.is_stored
            and not (backlog.is_caught_up or backlog.is_gone)
        ):
            self._on_readable(backlog)
        if self._on_change is not None:
            self._on_change(backlog.watcher)

    def mark_settled(self, backlog: Backlog) -> None:
        """All is durable that one that has caught up has taken up to its position, perhaps in a group before."""
        if self._on_settled is not None:
            self._on_settled(backlog)

    def _submit(
        self,
        backlog: Backlog,
        position: Position | None,
        on_done: Callable[[Exception | None], None],
    ) -> None:
        assert self._sink is not None
        if self._is_closed:
            on_done(LeaseLost("the stream was closed"))
            return
        self._sink.submit_nowait(
            PositionChange(
                backlog.fence,
                backlog.watcher.watcher_id,
                backlog.stored_as,
                position,
                backlog.since,
                backlog.stored_head,
                backlog.failures if position == backlog.cursor else 0,
                on_done,
                backlog.reemit,
                backlog.rewound_to,
            )
        )


def _reads(backlog: Backlog, position: Position) -> bool:
    return backlog.is_caught_up and not is_before(position, backlog.cursor)
