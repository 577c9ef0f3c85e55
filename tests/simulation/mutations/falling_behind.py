"""Bugs in the decision which watcher falls behind, and at which message."""

from __future__ import annotations

from tests.simulation.mutations.registry import Replacements, mutation
from triggerer.abc import AdvanceOutcome
from triggerer.domain.watchers.lane_positions import Position
from triggerer.streams.catchup.falling_behind.decision import FallingBehind
from triggerer.streams.delivery.admission import Admission
from triggerer.streams.delivery.lane import Entry, Lane


@mutation(rules="S13|S2/S7", seed=188)
def a_watcher_falls_behind_after_a_message_that_comes_again() -> Replacements:
    """A watcher falls behind at a message although the broker redelivers an earlier one, and misses the earlier one."""

    def is_redelivered(self: FallingBehind, entry: Entry, lane: Lane, position: Position) -> bool:
        return False

    yield FallingBehind._is_redelivered, is_redelivered


@mutation(rules="S13|S2/S7", seed=5442)
def only_the_first_that_failed_is_remembered() -> Replacements:
    """Two messages of a batch fail, the second an older one that was redelivered. Only the first is remembered."""
    right = FallingBehind.decide

    def decide(self: FallingBehind, entry: Entry, outcome: AdvanceOutcome) -> AdvanceOutcome | None:
        before = dict(self._state.failing)
        decided = right(self, entry, outcome)
        self._state.failing.update(before)
        return decided

    yield right, decide


@mutation(rules="L1", seed=9)
def a_message_waits_for_watchers_with_a_backlog() -> Replacements:
    """A message waits for the watchers with a backlog in its lane."""
    right = FallingBehind._decide

    def decide(self: FallingBehind, entry: Entry, outcome: AdvanceOutcome) -> AdvanceOutcome | None:
        lane = entry.lane
        if self._is_possible and lane is not None:
            position = self._state.position_of(entry)
            failed = self._not_behind(lane, position, self._watchers_that_failed(entry))
            behind, _ = self._catching_up_there(lane, position)
            if behind and (failed or not (outcome.acked or outcome.rejected)):
                entry.unresolved += 1
                return None
        return right(self, entry, outcome)

    yield right, decide


@mutation(rules="S13", seed=2723)
def a_restarted_trigger_reads_past_undecided_messages() -> Replacements:
    """A restarted trigger continues a lane, although the outcome of messages that it missed is still undecided."""
    right = Admission.admits

    def admits(self: Admission, entry: Entry) -> bool:
        before, self._missed_to = self._missed_to, 0
        is_open = right(self, entry)
        self._missed_to = max(before, self._missed_to)
        return is_open

    yield right, admits
