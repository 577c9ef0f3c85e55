"""Bugs where catching up meets what is broadcast, and in when a position is forgotten."""

from __future__ import annotations

from tests.simulation.mutations.registry import Replacements, mutation
from triggerer.domain.events import WatcherRef
from triggerer.domain.watchers.lane_positions import Position, is_before
from triggerer.streams.catchup.backlogs import backlogs as lags
from triggerer.streams.catchup.backlogs.backlog import Lag
from triggerer.streams.catchup.processing.catch_up_tasks import WatchersBehind
from triggerer.streams.catchup.reading.handover import Seam
from triggerer.streams.delivery.group_state import GroupState
from triggerer.streams.supervision.member import HostedTrigger


@mutation(rules="S13|S2/S7", seed=6, quick=True)
def a_gap_at_the_seam() -> Replacements:
    """A watcher goes live as soon as anything was broadcast in its lane, and misses what lies between."""
    right = Seam._is_at_head

    def is_at_head(self: Seam, lag: Lag) -> bool:
        if (
            lag.kept is None
            and not lag.is_making_again
            and self._state.recent_of(lag.lane).newest is not None
        ):
            return True
        return right(self, lag)

    yield right, is_at_head


@mutation(rules="S13", seed=21, quick=True)
def a_repeat_at_the_seam() -> Replacements:
    """The live filter is given what the watcher has read while it caught up."""

    def reads(lag: Lag, position: Position) -> bool:
        return lag.is_live

    yield lags._reads, reads


@mutation(rules="S13|S2/S7", seed=9, quick=True)
def a_live_message_overtakes_what_lies_behind() -> Replacements:
    """The live filter gets messages of a lane although the watcher is still behind there."""

    def reads(lag: Lag, position: Position) -> bool:
        return not is_before(position, lag.read_to)

    yield lags._reads, reads


@mutation(rules="S13|S2/S7", seed=10, quick=True)
def a_row_goes_before_the_broker_was_advanced() -> Replacements:
    """A watcher has caught up, and its position is deleted before the broker was advanced to it."""
    right = Seam.go_live_if_caught_up

    def go_live_if_caught_up(self: Seam, lag: Lag) -> bool:
        was_live, is_live = lag.is_live, right(self, lag)
        if is_live and not was_live and not lag.is_gone:
            self._state.lags.end(lag)
        return is_live

    yield right, go_live_if_caught_up


@mutation(rules="S13", seed=14, quick=True)
def a_row_goes_before_what_has_failed_comes_again() -> Replacements:
    """A message was broadcast and is not outstanding: it counts as advanced although it has failed."""
    right = GroupState._is_advanced_to

    def is_advanced_to(self: GroupState, lag: Lag) -> bool:
        failed, self.failed_in = self.failed_in, {}
        is_advanced = right(self, lag)
        self.failed_in = failed
        return is_advanced

    yield right, is_advanced_to


@mutation(rules="L5", seed=65, quick=True)
def a_row_stays_until_the_next_message() -> Replacements:
    """A position stays until the lane's next message, although the broker was advanced to it."""
    right = GroupState._is_advanced_to

    def is_advanced_to(self: GroupState, lag: Lag) -> bool:
        reached, self.lags.advanced_to = self.lags.advanced_to, {}
        is_advanced = right(self, lag)
        self.lags.advanced_to = reached
        return is_advanced

    yield right, is_advanced_to


@mutation(rules="L5", seed=189)
def a_row_stays_behind_places_without_a_message() -> Replacements:
    """A position waits until the broker was advanced past places that hold no message."""

    def last_end(self: Lag) -> Position:
        return self.position

    yield Lag.last_end, last_end


@mutation(rules="L5", seed=2630)
def a_later_owner_knows_no_places_without_a_message() -> Replacements:
    """A position behind places that hold no message is stored as it is."""

    def stored_position(self: Lag) -> Position:
        return self.position

    yield Lag.stored_position, stored_position


@mutation(rules="L5", seed=6, quick=True)
def who_has_caught_up_is_shown_as_catching_up() -> Replacements:
    """A watcher has caught up, and its state still says that it is catching up."""
    right = WatchersBehind._note_lags_of

    def note_lags_of(self: WatchersBehind, member: HostedTrigger, watcher: WatcherRef) -> bool:
        has_changed = right(self, member, watcher)
        return has_changed and bool(self.lags.count_behind(watcher.watcher_id))

    yield right, note_lags_of
