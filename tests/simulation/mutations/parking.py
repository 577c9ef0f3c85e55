"""Bugs in messages that are set aside, and in replays of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.simulation.mutations.registry import Replacements, mutation
from tests.simulation.mutations.settled import moving_past
from triggerer.abc import SharedStreamProducer
from triggerer.domain.watchers.parked import Replayed
from triggerer.store.database.statement import Statement
from triggerer.store.watchers import parked
from triggerer.streams.catchup.backlogs.backlog import Lag
from triggerer.streams.catchup.processing.in_flight import TakenAgain, TakenFromLane, Trial
from triggerer.streams.catchup.processing.outcomes import Settlement
from triggerer.streams.catchup.processing.parking import SettingAside
from triggerer.streams.catchup.processing.probes import Trials
from triggerer.streams.catchup.reading.stored_messages import KeptMessages
from triggerer.testing.simulation.database.parked_writes import ParkedWrites
from triggerer.testing.simulation.kernel.delivery import ParkedRow


@mutation(rules="L1", seed=48)
def a_lane_waits_for_ever_behind_what_was_set_aside() -> Replacements:
    """A message was set aside, and nobody goes on with its lane."""
    right_set_aside, right_pass = Settlement._set_aside, Settlement._pass
    waited_for: set[TakenFromLane] = set()

    def set_aside(
        self: Settlement, taken: TakenFromLane, error: Exception, *, is_waited_for: bool = False
    ) -> bool:
        if is_waited_for:
            waited_for.add(taken)
        return right_set_aside(self, taken, error, is_waited_for=is_waited_for)

    def pass_(self: Settlement, taken: TakenFromLane) -> bool:
        goes_on = right_pass(self, taken)
        if taken in waited_for:
            self._missed.hold(taken.lag)
        return goes_on

    yield right_set_aside, set_aside
    yield right_pass, pass_


@mutation(rules="S13", seed=48, quick=True)
def a_message_is_blamed_though_nothing_else_passes() -> Replacements:
    """A message is tried, nothing derives from it, and it counts as one that the watcher can take."""
    right = Trials.note_passed

    def note_passed(self: Trials, lag: Lag, *, is_evidence: bool) -> None:
        right(self, lag, is_evidence=is_evidence)
        if lag in self._trials:
            self._trials[lag].has_passed = True

    yield right, note_passed


@mutation(rules="S13|S4|L1", seed=28)
def a_message_is_set_aside_under_a_key_of_its_own() -> Replacements:
    """A message that has a key is set aside under a key that names its place."""

    def key_of(self: SettingAside, producer: SharedStreamProducer, taken: TakenFromLane) -> str:
        lag = taken.lag
        return f"{lag.stored_as}@{taken.message.position}/{lag.failures}"

    yield SettingAside._key_of, key_of


@mutation(rules="S13", seed=10, quick=True)
def a_position_passes_what_is_being_set_aside() -> Replacements:
    """A position moves past a message before the store has set that message aside."""
    yield from moving_past(lambda taken: taken.is_parked)


@mutation(rules="S13", seed=115)
def a_replayed_message_goes_before_its_events_are_durable() -> Replacements:
    """A replayed message is deleted as soon as the filter has moved past it."""
    right = Settlement._resolve_alone

    def resolve_alone(self: Settlement, taken: Trial | TakenAgain) -> bool:
        is_resolved = right(self, taken)
        if is_resolved and taken.unresolved:
            self._settle(taken)
        return is_resolved

    yield right, resolve_alone


@mutation(rules="S13", seed=28, quick=True)
def bytes_of_others_go_with_a_message() -> Replacements:
    """The bytes of a parked message are deleted with it, although other messages refer to them.

    The bug is in the model of the statement.
    """
    right = ParkedWrites._perform_by_id

    def perform_by_id(
        self: ParkedWrites,
        rows: dict[tuple[int, str], ParkedRow],
        statement: Statement,
        values: Mapping[str, Any],
    ) -> Any:
        if statement is not parked.DROP_BODIES:
            return right(self, rows, statement, values)
        for body in [body for body, id_ in self._bodies.items() if id_ in values["ids"]]:
            del self._bodies[body]
        return []

    yield right, perform_by_id


@mutation(rules="S13", seed=48, quick=True)
def the_next_message_is_blamed_too() -> Replacements:
    """The trials of one message count for the next message that fails."""
    right = Settlement._pass

    def pass_(self: Settlement, taken: TakenFromLane) -> bool:
        trial = self._trials._trials.get(taken.lag)
        goes_on = right(self, taken)
        if trial is not None:
            self._trials._trials[taken.lag] = trial
        return goes_on

    yield right, pass_


@mutation(rules="S13", seed=10)
def what_fails_again_is_gone() -> Replacements:
    """A replayed message fails again, and its row is deleted."""

    def note_failed(self: KeptMessages, taken: TakenAgain, error: BaseException) -> None:
        taken.is_dropped = True
        self._submit(taken.kept, Replayed(taken.kept.id))

    yield KeptMessages.note_failed, note_failed


@mutation(rules="S4", seed=48)
def what_is_replayed_is_made_again() -> Replacements:
    """The events of a replayed message have keys of their own, so the store takes them twice."""

    def key(self: TakenAgain) -> str:
        return f"{self.kept.key}#{self.kept.id}"

    yield TakenAgain.key, key
