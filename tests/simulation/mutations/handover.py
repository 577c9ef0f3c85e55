"""Bugs in the handover from catch-up to live delivery, and in when a position is deleted."""

from __future__ import annotations

from tests.simulation.mutations.registry import Replacements, mutation
from triggerer.domain.events import WatcherRef
from triggerer.domain.watchers.lane_positions import Position, is_before
from triggerer.streams.catchup.backlogs import backlogs
from triggerer.streams.catchup.backlogs.backlog import Backlog
from triggerer.streams.catchup.processing.catch_up_tasks import CatchUpTasks
from triggerer.streams.catchup.reading.handover import Handover
from triggerer.streams.delivery.group_state import GroupState
from triggerer.streams.supervision.member import Member


@mutation(rules="S13|S2/S7", seed=6, quick=True)
def a_gap_at_the_seam() -> Replacements:
    """A watcher goes live as soon as its lane has a broadcast, and misses the messages between."""
    right = Handover._is_at_head

    def is_at_head(self: Handover, backlog: Backlog) -> bool:
        if (
            backlog.stored_lane is None
            and not backlog.is_reemitting
            and self._state.lane_tail_of(backlog.lane).newest is not None
        ):
            return True
        return right(self, backlog)

    yield right, is_at_head


@mutation(rules="S13", seed=21, quick=True)
def a_repeat_at_the_seam() -> Replacements:
    """The live filter gets messages that the watcher has read while it caught up."""

    def reads(backlog: Backlog, position: Position) -> bool:
        return backlog.is_caught_up

    yield backlogs._reads, reads


@mutation(rules="S13|S2/S7", seed=9, quick=True)
def a_live_message_overtakes_the_backlog() -> Replacements:
    """The live filter gets messages of a lane although the watcher still has a backlog there."""

    def reads(backlog: Backlog, position: Position) -> bool:
        return not is_before(position, backlog.cursor)

    yield backlogs._reads, reads


@mutation(rules="S13|S2/S7", seed=10, quick=True)
def a_row_goes_before_the_broker_was_advanced() -> Replacements:
    """A watcher has caught up, and its position is deleted before the broker was advanced to it."""
    right = Handover.go_live_if_caught_up

    def go_live_if_caught_up(self: Handover, backlog: Backlog) -> bool:
        was_live, is_caught_up = backlog.is_caught_up, right(self, backlog)
        if is_caught_up and not was_live and not backlog.is_gone:
            self._state.backlogs.end(backlog)
        return is_caught_up

    yield right, go_live_if_caught_up


@mutation(rules="S13", seed=14, quick=True)
def a_row_is_deleted_before_a_failed_message_comes_again() -> Replacements:
    """A position is deleted because its message is no longer outstanding, although the message failed and comes
    again."""
    right = GroupState._is_advanced_to

    def is_advanced_to(self: GroupState, backlog: Backlog) -> bool:
        failed, self.failed_in = self.failed_in, {}
        is_advanced = right(self, backlog)
        self.failed_in = failed
        return is_advanced

    yield right, is_advanced_to


@mutation(rules="L5", seed=65, quick=True)
def a_row_stays_until_the_next_message() -> Replacements:
    """A position stays until the lane's next message, although the broker was advanced to it."""
    right = GroupState._is_advanced_to

    def is_advanced_to(self: GroupState, backlog: Backlog) -> bool:
        reached, self.backlogs.advanced_to = self.backlogs.advanced_to, {}
        is_advanced = right(self, backlog)
        self.backlogs.advanced_to = reached
        return is_advanced

    yield right, is_advanced_to


@mutation(rules="L5", seed=21)
def a_row_stays_before_positions_without_a_message() -> Replacements:
    """A position stays until the broker was advanced past positions without a message, which may never happen."""

    def position_before_gap(self: Backlog) -> Position:
        return self.position

    yield Backlog.position_before_gap, position_before_gap


@mutation(rules="L5", seed=22722)
def a_later_owner_does_not_know_positions_without_a_message() -> Replacements:
    """The end of a stretch without messages is stored, not its beginning. A later owner then waits for an advance to
    this end, which may never happen."""

    def stored_position(self: Backlog) -> Position:
        return self.position

    yield Backlog.stored_position, stored_position


@mutation(rules="L5", seed=6, quick=True)
def a_watcher_that_caught_up_is_shown_as_catching_up() -> Replacements:
    """A watcher has caught up, and its state still says that it is catching up."""
    right = CatchUpTasks._record_backlogs_of

    def note_lags_of(self: CatchUpTasks, member: Member, watcher: WatcherRef) -> bool:
        has_changed = right(self, member, watcher)
        return has_changed and bool(self.backlogs.count_behind(watcher.watcher_id))

    yield right, note_lags_of
