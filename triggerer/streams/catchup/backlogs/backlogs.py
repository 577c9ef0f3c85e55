"""Which watchers of a stream are behind in which lane, and where they stand. Synchronous, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

from triggerer.domain.events import EventSource, Fence, WatcherRef
from triggerer.domain.watchers.lane_positions import (
    Again,
    LanePosition,
    Position,
    PositionChange,
    PositionSink,
    ReplayEnd,
    decode_lane,
    encode_lane,
    is_before,
)
from triggerer.errors import LeaseLost
from triggerer.streams.catchup.backlogs.backlog import Lag


def _ignore(_: Exception | None) -> None:
    pass


class Lags:
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
        on_readable: Callable[[Lag], None] | None = None,
        on_settled: Callable[[Lag], None] | None = None,
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
        self.by_lane: dict[Hashable, dict[int, Lag]] = {}
        """By lane and the watcher's id."""
        self.advanced_to: dict[Hashable, Position] = {}
        """By lane of these how far the broker was advanced since the first of them is there, if it was."""
        self.live: dict[Hashable, dict[Lag, None]] = {}
        """By lane those that have caught up, and whose rows are still to go."""
        self.set_back: dict[Hashable, dict[Lag, None]] = {}
        """By lane those that have `Lag.set_back_to`."""
        self.held: set[int] = set()
        """Watchers that are being set back: until that is durable they read nothing again."""
        self._by_watcher: dict[int, dict[Hashable, Lag]] = {}
        self._behind: dict[int, dict[Lag, None]] = {}
        """By watcher those of its lanes in which it has not caught up."""

    def close(self) -> None:
        """Store nothing more, whatever becomes durable: the stream may run anew, under the same lease."""
        self._is_closed = True

    @property
    def are_kept(self) -> bool:
        """Whether positions are stored, so that somebody can be behind."""
        return self._sink is not None

    def __bool__(self) -> bool:
        return bool(self.by_lane)

    def of(self, watcher_id: int) -> list[Lag]:
        """All lanes in which the watcher is behind, or was."""
        return list(self._by_watcher.get(watcher_id, {}).values())

    def watchers(self) -> set[WatcherRef]:
        """Those that are behind in some lane, or were."""
        return {next(iter(of_watcher.values())).watcher for of_watcher in self._by_watcher.values()}

    def behind(self, watcher_id: int) -> Iterator[Lag]:
        """The lanes in which the watcher is behind."""
        return iter(list(self._behind.get(watcher_id, ())))

    def count_behind(self, watcher_id: int) -> int:
        """In how many lanes the watcher is behind."""
        return len(self._behind.get(watcher_id, ()))

    def may_catch_up(self, watcher_id: int) -> bool:
        """Whether there is something in `to_catch_up`."""
        return watcher_id not in self.held and any(
            lag.is_stored for lag in self._behind.get(watcher_id, ())
        )

    def to_catch_up(self, watcher_id: int) -> list[Lag]:
        """The lanes that the watcher may read again: it is behind there, and that is durable."""
        if watcher_id in self.held:
            return []
        return [lag for lag in self.behind(watcher_id) if lag.is_stored]

    def find(self, lane: Hashable, watcher_id: int) -> Lag | None:
        return self.by_lane.get(lane, {}).get(watcher_id)

    def load(self, watcher: WatcherRef, fence: Fence, row: LanePosition) -> None:
        """Take over what is stored, unless it is known here already, and newer."""
        lane = decode_lane(row.lane)
        if self.find(lane, watcher.watcher_id) is None:
            self._add(
                Lag(
                    watcher,
                    lane,
                    row.lane,
                    row.since,
                    fence,
                    row.position,
                    row.position,
                    row.failures,
                    is_stored=True,
                    again=row.again,
                    set_back_to=row.set_back_to,
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
            broadcast_to: See `Lag.broadcast_to`.
            on_stored: Called once that is durable, or will not be.
        """
        stored_as = encode_lane(lane)
        if stored_as is None:
            return False
        lag = self.find(lane, watcher.watcher_id)
        if lag is None:
            lag = Lag(watcher, lane, stored_as, now, fence, position, position)
            self._add(lag)
        elif lag.is_live and is_before(lag.position, lag.read_to):
            # It had caught up, and not all of that is durable: it reads again from there, and what it took counts no
            # more.
            lag = self._begin_again(lag, lag.position, now)
        else:
            lag.since = now if lag.is_live else lag.since
            if lag.is_live or not is_before(lag.position, position):
                lag.position = lag.read_to = position
                lag.gap = None
            lag.is_dirty = False
            lag.failures = 0
            lag.end = None
            self.leave_live(lag)
        lag.broadcast_to = broadcast_to
        self._store(lag, on_stored)
        return True

    def _begin_again(self, lag: Lag, position: Position, now: datetime, **changes: Any) -> Lag:
        """Replace a lag by a new one, of which nothing was taken yet."""
        new = replace(
            lag,
            since=now if lag.is_live else lag.since,
            position=position,
            read_to=position,
            end=None,
            is_live=False,
            is_being_written=False,
            is_dirty=False,
            failures=0,
            gap=None,
            **changes,
        )
        self.leave_live(lag)
        self._unwatch(lag)
        lag.is_gone = True
        self._note_where(lag)
        self._add(new)
        return new

    def _store(self, lag: Lag, on_stored: Callable[[Exception | None], None]) -> None:
        def note(error: Exception | None) -> None:
            if error is None:
                lag.is_stored = True
            elif not lag.is_stored:
                self.forget(lag)
            on_stored(error)
            self.note_change(lag)

        self._submit(lag, lag.stored_position, note)

    def move(self, lag: Lag) -> None:
        """Store the lag's position, as soon as the last one that was submitted is durable."""
        if lag.kept is not None:
            return
        if lag.is_being_written:
            lag.is_dirty = True
        elif not lag.is_gone:
            lag.is_dirty, lag.is_being_written = False, True

            def note(error: Exception | None) -> None:
                lag.is_being_written = False
                if lag.is_dirty and error is None:
                    self.move(lag)

            self._submit(lag, lag.stored_position, note)

    def go_live(self, lag: Lag) -> None:
        """It has caught up: the live filter reads on from `read_to`."""
        lag.is_live = True
        self._note_where(lag)
        self.live.setdefault(lag.lane, {})[lag] = None
        self.note_change(lag)

    # Being set back

    def store_ahead(self, lag: Lag, on_stored: Callable[[Exception | None], None]) -> None:
        """Store the position of a lag that is not entered yet; once that is durable the caller enters it."""
        lag.is_stored = True
        self._submit(lag, lag.stored_position, on_stored)

    def enter(self, lag: Lag) -> None:
        """Count a watcher as behind in a lane from now on. Its position is durable, or need not be stored."""
        self._add(lag)
        self.note_change(lag)

    def all(self) -> list[Lag]:
        return [lag for lags in self.by_lane.values() for lag in lags.values()]

    def set_back_from(
        self,
        lag: Lag,
        position: Position,
        again: Again | None,
        now: datetime,
        on_stored: Callable[[Exception | None], None] = _ignore,
    ) -> None:
        """Have a watcher read again from an earlier position, or with other keys; what was taken since counts no more.

        Args:
            on_stored: Called once that is durable, or will not be. Before, no less is durable than was.
        """
        if lag.set_back_to is not None and is_before(position, lag.position):
            # What lies before that it may have missed, and nothing of it is durable.
            lag.is_stored = False
        place = None if position == lag.position and not lag.is_live else position
        new = self._begin_again(
            lag, position, now, again=again, set_back_to=place or lag.set_back_to
        )
        self._store(new, on_stored)

    def note_broadcast(self, lane: Hashable, position: Position, now: datetime) -> None:
        """Set back further whoever was set back and may have missed this message, which is about to be broadcast."""
        for lag in list(self.set_back.get(lane, ())):
            if lag.set_back_to is not None and is_before(position, lag.set_back_to):
                self.set_back_from(lag, position, lag.again, now)

    def note_advanced(self, lane: Hashable, reached: Position) -> None:
        """The broker was advanced to there, in a lane in which somebody is behind, or was."""
        before = self.advanced_to.get(lane)
        if before is None or not is_before(reached, before):
            self.advanced_to[lane] = reached
        for lag in list(self.set_back.get(lane, ())):
            if lag.set_back_to is not None and not is_before(reached, lag.set_back_to):
                self._unwatch(lag)

    def submit_end(self, end: ReplayEnd) -> None:
        """Have the row of a request deleted."""
        assert self._sink is not None
        self._sink.end_replay_nowait(end)

    def _unwatch(self, lag: Lag) -> None:
        lag.set_back_to = None
        watched = self.set_back.get(lag.lane, {})
        watched.pop(lag, None)
        if not watched:
            self.set_back.pop(lag.lane, None)

    def leave_live(self, lag: Lag) -> None:
        """Take a lag out of those that have caught up: it is behind again, or forgotten."""
        lag.is_live = False
        live = self.live.get(lag.lane, {})
        live.pop(lag, None)
        if not live:
            self.live.pop(lag.lane, None)
        self._note_where(lag)

    def _note_where(self, lag: Lag) -> None:
        watcher_id = lag.watcher.watcher_id
        behind = self._behind.get(watcher_id)
        if not (lag.is_live or lag.is_gone):
            if behind is None:
                behind = self._behind[watcher_id] = {}
            behind[lag] = None
        elif behind is not None:
            behind.pop(lag, None)
            if not behind:
                del self._behind[watcher_id]

    def end(self, lag: Lag) -> None:
        """Forget a lag, and delete its row: the broker was advanced to where it stands."""
        self.forget(lag)
        if lag.kept is None:
            self._submit(lag, None, _ignore)

    def forget(self, lag: Lag) -> None:
        """Drop a lag from memory. Its row stays, for others to delete."""
        lag.is_gone = True
        self.leave_live(lag)
        self._unwatch(lag)
        watcher_id = lag.watcher.watcher_id
        in_lane = self.by_lane.get(lag.lane, {})
        if in_lane.get(watcher_id) is lag:
            del in_lane[watcher_id]
            if not in_lane:
                del self.by_lane[lag.lane]
                self.advanced_to.pop(lag.lane, None)
            of_watcher = self._by_watcher[watcher_id]
            del of_watcher[lag.lane]
            if not of_watcher:
                del self._by_watcher[watcher_id]

    def forget_watchers(self, watchers: Iterable[WatcherRef]) -> None:
        """They were deleted, and their rows with them."""
        for watcher in watchers:
            for lag in self.of(watcher.watcher_id):
                self.forget(lag)

    def who_reads(
        self, source: EventSource, lane: Hashable, position: Position
    ) -> EventSource | None:
        """Return to which watchers a live filter's events of a message go: those not behind there. None: to nobody."""
        from_lane = self.by_lane.get(lane)
        if from_lane is None:
            return source
        reading = tuple(
            watcher
            for watcher in source.watchers
            if (lag := from_lane.get(watcher.watcher_id)) is None or _reads(lag, position)
        )
        if len(reading) == len(source.watchers):
            return source
        return EventSource(reading, source.fence) if reading else None

    def are_stored(self, source: EventSource, lane: Hashable) -> bool:
        """Whether the position of each of the source's watchers that is behind in the lane is durable."""
        lags = self.by_lane.get(lane, {})
        return all(
            lag.is_stored
            for watcher in source.watchers
            if (lag := lags.get(watcher.watcher_id)) is not None
        )

    def _add(self, lag: Lag) -> None:
        self.by_lane.setdefault(lag.lane, {})[lag.watcher.watcher_id] = lag
        self._by_watcher.setdefault(lag.watcher.watcher_id, {})[lag.lane] = lag
        self._note_where(lag)
        if lag.set_back_to is not None:
            self.set_back.setdefault(lag.lane, {})[lag] = None

    def note_change(self, lag: Lag) -> None:
        """Tell those who were handed in that something of a lag has changed."""
        if self._on_readable is not None and lag.is_stored and not (lag.is_live or lag.is_gone):
            self._on_readable(lag)
        if self._on_change is not None:
            self._on_change(lag.watcher)

    def note_settled(self, lag: Lag) -> None:
        """All is durable that one that has caught up has taken up to its position, perhaps in a group before."""
        if self._on_settled is not None:
            self._on_settled(lag)

    def _submit(
        self,
        lag: Lag,
        position: Position | None,
        on_done: Callable[[Exception | None], None],
    ) -> None:
        assert self._sink is not None
        if self._is_closed:
            on_done(LeaseLost("the stream was closed"))
            return
        self._sink.submit_nowait(
            PositionChange(
                lag.fence,
                lag.watcher.watcher_id,
                lag.stored_as,
                position,
                lag.since,
                lag.stored_head,
                lag.failures if position == lag.read_to else 0,
                on_done,
                lag.again,
                lag.set_back_to,
            )
        )


def _reads(lag: Lag, position: Position) -> bool:
    return lag.is_live and not is_before(position, lag.read_to)
