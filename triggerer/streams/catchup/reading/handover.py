"""Where a watcher that catches up meets what is broadcast: it goes on live from there, and misses nothing between."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Final

import anyio
import structlog

from triggerer.backoff import Backoff
from triggerer.domain.events import WatcherRef
from triggerer.domain.watchers.lane_positions import Position, is_before, is_same_log
from triggerer.streams.catchup.backlogs.backlog import Lag
from triggerer.streams.catchup.backlogs.stored_lane import KeptInLane
from triggerer.streams.catchup.reading.lane_ends import find_positions, tells_positions
from triggerer.streams.delivery.group_state import GroupState
from triggerer.streams.supervision.member import HostedTrigger

_log = structlog.get_logger(__name__)

_LOOK_AT_ENDS_EVERY_S: Final = 10.0


class Seam:
    """The seam of one watcher, in all lanes of a group.

    Args:
        on_live: Called when it has caught up in a lane.
        on_recreated: Called for a lane that was made anew: what was taken from the one before counts no more.
        on_looked: Called when the lanes' ends were looked up, or with why they could not be.
        backoff: From a look that failed to the next.
    """

    def __init__(
        self,
        watcher: WatcherRef,
        hosted: HostedTrigger,
        state: GroupState,
        on_live: Callable[[], None],
        on_recreated: Callable[[Lag], None],
        on_looked: Callable[[Exception | None], None],
        backoff: Backoff,
    ) -> None:
        self._watcher = watcher
        self._hosted = hosted
        self._state = state
        self._on_live = on_live
        self._on_recreated = on_recreated
        self._on_looked = on_looked
        self._backoff = backoff
        self._looked_at = -math.inf
        self._is_looking = False
        self._without: set[Lag] = set()
        """Those whose lanes were not there when it was looked last."""
        self._recreated: dict[Lag, tuple[Position, Position]] = {}
        """Where lanes begin and end that were found to be made anew, until `begin_recreated`."""

    def look_if_due(self, tasks: anyio.abc.TaskGroup) -> None:
        """Look up where the lanes end, if that is unknown of some, or known for too long.

        Beside the reading: a lane of which no broker tells it, or that takes long, holds up no other.
        """
        if self._is_looking or self._state.keeps_messages or not self._tells_positions:
            return
        behind = self._in_log()
        is_old = self._state.clock.monotonic() - self._looked_at >= _LOOK_AT_ENDS_EVERY_S
        if behind and (is_old or self._is_unknown_of(behind)):
            self._is_looking = True
            tasks.start_soon(self._look, name=self._hosted.task_name)

    @property
    def _tells_positions(self) -> bool:
        producer = self._state.producer
        return producer is not None and tells_positions(type(producer))

    def _is_unknown_of(self, behind: Iterable[Lag]) -> bool:
        return any(
            lag.end is None and lag not in self._without and lag not in self._recreated
            for lag in behind
        )

    def _in_log(self) -> list[Lag]:
        lags = self._state.lags.to_catch_up(self._watcher.watcher_id)
        return [lag for lag in lags if lag.kept is None]

    async def _look(self) -> None:
        try:
            while True:
                try:
                    await self._look_once()
                except Exception as error:
                    # The plugin's: it is shown, and asked again.
                    self._on_looked(error)
                    clock = self._state.clock
                    await clock.sleep_until(clock.monotonic() + self._backoff.next_delay())
                else:
                    self._backoff.reset()
                    if not self._is_unknown_of(self._in_log()):
                        return
                    # It has fallen behind in another lane meanwhile.
        finally:
            self._is_looking = False

    async def _look_once(self) -> None:
        """Look up where the lanes end: who has read up to there, and missed no broadcast since, has caught up."""
        state = self._state
        assert state.producer is not None
        # Only of those that were behind before: what is broadcast from then on is kept, see `Recent`.
        behind = self._in_log()
        now = state.clock.monotonic()
        after = now if self._is_unknown_of(behind) else now - _LOOK_AT_ENDS_EVERY_S
        ends = await state.lane_ends.find(state.producer, state.clock, after=after)
        first: Mapping[Hashable, Position] = {}
        if any(not is_same_log(ends.get(lag.lane, lag.read_to), lag.read_to) for lag in behind):
            first = await find_positions(state.producer, None)
        self._looked_at = state.lane_ends.looked_at
        self._without = {lag for lag in behind if lag.lane not in ends}
        for lag in behind:
            end = ends.get(lag.lane)
            if end is None or lag.is_gone or lag.is_live:
                continue
            if is_same_log(end, lag.read_to):
                self._note_end(lag, end)
            else:
                self._recreated[lag] = first.get(lag.lane, end), end
        self._on_looked(None)

    def _note_end(self, lag: Lag, end: Position) -> None:
        lag.end, lag.head = end, end[1]
        self._state.lags.move(lag)

    def is_recreated(self, lag: Lag) -> bool:
        """Whether a lane was found to be made anew, and `begin_recreated` has to be called."""
        return lag in self._recreated

    def begin_recreated(self) -> None:
        """Begin with lanes that were found to be made anew. To be called while no lane is being read."""
        while self._recreated:
            lag, (first, end) = self._recreated.popitem()
            if not (lag.is_gone or lag.is_live or is_same_log(end, lag.read_to)):
                self.begin_anew(lag, first)
                self._note_end(lag, end)

    def begin_anew(self, lag: Lag, first: Position) -> None:
        """The lane was made anew: it is read from its first message, and what was counted before counts no more."""
        _log.error(
            "a lane was made anew while a watcher was behind in it: what it had missed is gone, and it is read from"
            " its beginning",
            watcher=self._hosted.name,
            lane=lag.stored_as,
            position=lag.read_to,
        )
        self._on_recreated(lag)
        lag.position = lag.read_to = first
        lag.end = None
        lag.blocked = None
        lag.failures = 0
        lag.again = None

    def go_live_if_caught_up(self, lag: Lag) -> bool:
        """Let the live filter have what is broadcast from now on, if nothing lies between. Synchronous."""
        if lag.is_live or lag.is_gone or not lag.is_stored:
            return lag.is_live
        # First what nearly always says no: this is asked after each message.
        if not self._is_at_head(lag):
            return False
        state = self._state
        # It has read all that there is: who looks for those that hold up the lane looks anew.
        state.progress.note_room()
        if not (self._is_live_there(lag) or self._is_over(lag)):
            return False
        if lag.kept is not None:
            # The live filter reads on from the next broadcast.
            is_settled = lag.position == lag.read_to
            lag.read_to = [None, state.ledger.head]
            lag.position = lag.read_to if is_settled else lag.position
        state.lags.go_live(lag)
        state.store_position(lag)
        state.end_if_advanced(lag)
        self._on_live()
        return True

    def _is_live_there(self, lag: Lag) -> bool:
        """Whether the live filter is there, and reads what is broadcast in the lane."""
        subscriber = self._hosted.subscriber
        return (
            subscriber is not None and subscriber.is_present and not subscriber.waits_for(lag.lane)
        )

    def _is_over(self, lag: Lag) -> bool:
        """Whether nothing is left in a lane of a queue. If its live filter is not there, it misses what comes next."""
        return lag.kept is not None and self._state.head_of(lag.lane) is None

    def _is_at_head(self, lag: Lag) -> bool:
        if lag.kept is not None:
            return self._has_nothing_left(lag, lag.kept)
        recent, end = self._state.recent_of(lag.lane), lag.end
        if lag.is_making_again:
            # What is made again is made so by one filter: after a crash the keys are the same.
            return False
        if recent.newest is not None:
            return is_before(recent.newest, lag.read_to)
        before = recent.before
        if before is not None and is_same_log(before, lag.read_to):
            # Whatever the producer says of the end: this was broadcast.
            if not is_before(before, lag.read_to):
                return False
            if not self._tells_positions:
                return True
        return end is not None and is_same_log(end, lag.read_to) and not is_before(lag.read_to, end)

    def _has_nothing_left(self, lag: Lag, kept: KeptInLane) -> bool:
        """Whether it has read what is kept, and what is outstanding."""
        if kept.are_there or kept.being_written:
            return False
        state = self._state
        if state.awaits_redelivery_in(lag.lane):
            # A message has failed that it has not read, and the broker is being told.
            return False
        lane = state.lanes.get(lag.lane)
        tail = None if lane is None else lane.tail
        return tail is None or tail.seq < max(lag.read_to[1], kept.decided_to)
