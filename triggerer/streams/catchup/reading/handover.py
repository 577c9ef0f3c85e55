"""Lets a watcher that has caught up in a lane continue live, without a gap or a repeat."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Final

import anyio
import structlog

from triggerer.backoff import Backoff
from triggerer.domain.events import WatcherRef
from triggerer.domain.watchers.lane_positions import Position, is_before, is_same_log
from triggerer.streams.catchup.backlogs.backlog import Backlog
from triggerer.streams.catchup.backlogs.stored_lane import StoredLane
from triggerer.streams.catchup.reading.lane_ends import find_positions, tells_positions
from triggerer.streams.delivery.group_state import GroupState
from triggerer.streams.supervision.member import Member

_log = structlog.get_logger(__name__)

_LOOK_UP_ENDS_EVERY_S: Final = 10.0


class Handover:
    """Finds the lanes where one watcher has read all messages of its backlog, and may go live.

    Args:
        on_live: Called when the watcher has caught up in a lane.
        on_recreated: Called with the backlog of a lane that was recreated. Outcomes of messages of the deleted lane
            must be ignored.
        on_ends_looked_up: Called after the ends of the lanes were looked up, with the error if the look-up failed.
        backoff: The delays between failed look-ups.
    """

    def __init__(
        self,
        watcher: WatcherRef,
        member: Member,
        state: GroupState,
        on_live: Callable[[], None],
        on_recreated: Callable[[Backlog], None],
        on_ends_looked_up: Callable[[Exception | None], None],
        backoff: Backoff,
    ) -> None:
        self._watcher = watcher
        self._member = member
        self._state = state
        self._on_live = on_live
        self._on_recreated = on_recreated
        self._on_ends_looked_up = on_ends_looked_up
        self._backoff = backoff
        self._looked_up_at = -math.inf
        self._is_looking_up = False
        self._without: set[Backlog] = set()
        """The backlogs whose lanes were missing in the last look-up."""
        self._recreated: dict[Backlog, tuple[Position, Position]] = {}
        """The first position and the end of each recreated lane, until `begin_recreated` is called.

        For example, a Kafka topic was deleted and created again.
        """

    def look_up_ends_if_due(self, tasks: anyio.abc.TaskGroup) -> None:
        """Start to look up the ends of the lanes, if the end of a lane is unknown, or the last look-up is old.

        Without broadcasts in a lane, only the lane's end shows that the watcher has read everything. The look-up runs
        in its own task, so that a slow answer does not delay the reading.
        """
        if self._is_looking_up or self._state.stores_messages or not self._tells_positions:
            return
        behind = self._in_log()
        is_old = self._state.clock.monotonic() - self._looked_up_at >= _LOOK_UP_ENDS_EVERY_S
        if behind and (is_old or self._is_unknown_of(behind)):
            self._is_looking_up = True
            tasks.start_soon(self._look_up_ends, name=self._member.task_name)

    @property
    def _tells_positions(self) -> bool:
        producer = self._state.producer
        return producer is not None and tells_positions(type(producer))

    def _is_unknown_of(self, behind: Iterable[Backlog]) -> bool:
        return any(
            backlog.end is None and backlog not in self._without and backlog not in self._recreated
            for backlog in behind
        )

    def _in_log(self) -> list[Backlog]:
        backlogs = self._state.backlogs.to_catch_up(self._watcher.watcher_id)
        return [backlog for backlog in backlogs if backlog.stored_lane is None]

    async def _look_up_ends(self) -> None:
        try:
            while True:
                try:
                    await self._look_up_ends_once()
                except Exception as error:
                    # The plugin failed: the error is shown, and the look-up repeated.
                    self._on_ends_looked_up(error)
                    clock = self._state.clock
                    await clock.sleep_until(clock.monotonic() + self._backoff.next_delay())
                else:
                    self._backoff.reset()
                    if not self._is_unknown_of(self._in_log()):
                        return
                    # The watcher has fallen behind in another lane meanwhile, so look up the ends again.
        finally:
            self._is_looking_up = False

    async def _look_up_ends_once(self) -> None:
        """Look up the lanes' ends.

        A watcher may go live in a lane once it has read the messages up to this end, and all later broadcasts.
        """
        state = self._state
        assert state.producer is not None
        # Record ends only for backlogs from before the look-up. For a newer backlog, the end could be too low: messages
        # broadcast between the look-up and the start of the lane's tail would be missed.
        behind = self._in_log()
        now = state.clock.monotonic()
        after = now if self._is_unknown_of(behind) else now - _LOOK_UP_ENDS_EVERY_S
        ends = await state.lane_ends.find(state.producer, state.clock, after=after)
        first: Mapping[Hashable, Position] = {}
        if any(
            not is_same_log(ends.get(backlog.lane, backlog.cursor), backlog.cursor)
            for backlog in behind
        ):
            first = await find_positions(state.producer, None)
        self._looked_up_at = state.lane_ends.looked_up_at
        self._without = {backlog for backlog in behind if backlog.lane not in ends}
        for backlog in behind:
            end = ends.get(backlog.lane)
            if end is None or backlog.is_gone or backlog.is_caught_up:
                continue
            if is_same_log(end, backlog.cursor):
                self._record_end(backlog, end)
            else:
                self._recreated[backlog] = first.get(backlog.lane, end), end
        self._on_ends_looked_up(None)

    def _record_end(self, backlog: Backlog, end: Position) -> None:
        backlog.end, backlog.log_end = end, end[1]
        self._state.backlogs.writes.move(backlog)

    def is_recreated(self, backlog: Backlog) -> bool:
        """Return whether the lane was recreated, so that `begin_recreated` must be called."""
        return backlog in self._recreated

    def begin_recreated(self) -> None:
        """Let each recreated lane be read from its beginning. Call this while no lane is being read."""
        while self._recreated:
            backlog, (first, end) = self._recreated.popitem()
            if not (backlog.is_gone or backlog.is_caught_up or is_same_log(end, backlog.cursor)):
                self.read_recreated(backlog, first)
                self._record_end(backlog, end)

    def read_recreated(self, backlog: Backlog, first: Position) -> None:
        """Read a recreated lane from its first message, with no failures counted."""
        _log.error(
            "a lane was recreated while a watcher was behind in it: the missed messages are gone, and it is read from"
            " its beginning",
            watcher=self._member.name,
            lane=backlog.stored_as,
            position=backlog.cursor,
        )
        self._on_recreated(backlog)
        backlog.position = backlog.cursor = first
        backlog.end = None
        backlog.blocked = None
        backlog.failures = 0
        backlog.reemit = None

    def go_live_if_caught_up(self, backlog: Backlog) -> bool:
        """Let the watcher go live in the lane if it has read all messages. Return whether it is live. Synchronous."""
        if backlog.is_caught_up or backlog.is_gone or not backlog.is_stored:
            return backlog.is_caught_up
        # This is checked after every burst of messages, and is usually false.
        if not self._is_at_head(backlog):
            return False
        state = self._state
        # The watcher has read the whole lane, and waits for messages. Wake `SlowSubscribers`, which fails a sibling
        # that holds up a waiting watcher.
        state.progress.signal_room()
        if not (self._is_live_there(backlog) or self._is_over(backlog)):
            return False
        if backlog.stored_lane is not None:
            # The live filter continues with the next broadcast.
            is_settled = backlog.position == backlog.cursor
            backlog.cursor = [None, state.ledger.next_seq]
            backlog.position = backlog.cursor if is_settled else backlog.position
        state.backlogs.go_live(backlog)
        state.store_position(backlog)
        state.end_if_advanced(backlog)
        self._on_live()
        return True

    def _is_live_there(self, backlog: Backlog) -> bool:
        """Return whether the live filter is present and reads the lane."""
        subscriber = self._member.subscriber
        return (
            subscriber is not None
            and subscriber.is_present
            and not subscriber.admission.waits_for(backlog.lane)
        )

    def _is_over(self, backlog: Backlog) -> bool:
        """Return whether the lane is a queue's and is empty. Then the backlog ends, even if the live filter is absent.

        An absent watcher falls behind again at the lane's next message.
        """
        return backlog.stored_lane is not None and self._state.head_of(backlog.lane) is None

    def _is_at_head(self, backlog: Backlog) -> bool:
        if backlog.stored_lane is not None:
            return self._has_nothing_left(backlog, backlog.stored_lane)
        lane_tail, end = self._state.lane_tail_of(backlog.lane), backlog.end
        if backlog.is_reemitting:
            # Stay behind, because the live filter would not use the replay's keys for its events.
            return False
        if lane_tail.newest is not None:
            return is_before(lane_tail.newest, backlog.cursor)
        before = lane_tail.before
        if before is not None and is_same_log(before, backlog.cursor):
            # There was a message at `before`, even if the producer reported a lower end.
            if not is_before(before, backlog.cursor):
                return False
            if not self._tells_positions:
                return True
        return (
            end is not None
            and is_same_log(end, backlog.cursor)
            and not is_before(backlog.cursor, end)
        )

    def _has_nothing_left(self, backlog: Backlog, stored: StoredLane) -> bool:
        """Return whether the watcher has read every stored and every outstanding message."""
        if stored.has_unread or stored.unread_writes:
            return False
        state = self._state
        if state.awaits_redelivery_in(backlog.lane):
            # A message that the watcher has not read has failed, and is going to be redelivered.
            return False
        lane = state.lanes.get(backlog.lane)
        tail = None if lane is None else lane.tail
        return tail is None or tail.seq < max(backlog.cursor[1], stored.decided_to)
