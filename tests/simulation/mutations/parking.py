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
from triggerer.streams.catchup.backlogs.backlog import Backlog
from triggerer.streams.catchup.processing.in_flight import (
    LaneMessageInFlight,
    Probe,
    ReplayedMessageInFlight,
)
from triggerer.streams.catchup.processing.outcomes import Outcomes
from triggerer.streams.catchup.processing.parking import Parking
from triggerer.streams.catchup.processing.probes import Probes
from triggerer.streams.catchup.reading.replayed_messages import ReplayedMessages
from triggerer.testing.simulation.database.parked_writes import ParkedWrites
from triggerer.testing.simulation.kernel.delivery import ParkedRow


@mutation(rules="L1", seed=48)
def a_lane_waits_for_ever_after_a_parked_message() -> Replacements:
    """A message was parked, and its lane does not continue."""
    right_park, right_pass = Outcomes._park, Outcomes._pass
    waited_for: set[LaneMessageInFlight] = set()

    def set_aside(
        self: Outcomes,
        in_flight: LaneMessageInFlight,
        error: Exception,
        *,
        is_waited_for: bool = False,
    ) -> bool:
        if is_waited_for:
            waited_for.add(in_flight)
        return right_park(self, in_flight, error, is_waited_for=is_waited_for)

    def pass_(self: Outcomes, in_flight: LaneMessageInFlight) -> bool:
        goes_on = right_pass(self, in_flight)
        if in_flight in waited_for:
            self._reader.hold(in_flight.backlog)
        return goes_on

    yield right_park, set_aside
    yield right_pass, pass_


@mutation(rules="S13", seed=48, quick=True)
def a_message_is_blamed_though_nothing_else_passes() -> Replacements:
    """A probe yields no event, and still counts as proof that the watcher accepts messages."""
    right = Probes.mark_passed

    def mark_passed(self: Probes, backlog: Backlog, *, is_evidence: bool) -> None:
        right(self, backlog, is_evidence=is_evidence)
        if backlog in self._probes:
            self._probes[backlog].has_passed = True

    yield right, mark_passed


@mutation(rules="S13|S4|L1", seed=28)
def a_message_is_parked_under_another_key() -> Replacements:
    """A message that has a key is parked under a key that names its position."""

    def key_of(
        self: Parking, producer: SharedStreamProducer, in_flight: LaneMessageInFlight
    ) -> str:
        backlog = in_flight.backlog
        return f"{backlog.stored_as}@{in_flight.message.position}/{backlog.failures}"

    yield Parking._key_of, key_of


@mutation(rules="S13", seed=10, quick=True)
def a_position_passes_a_message_before_it_is_parked() -> Replacements:
    """A position moves past a message before the store has parked that message."""
    yield from moving_past(lambda in_flight: in_flight.is_being_parked)


@mutation(rules="S13", seed=115)
def a_replayed_message_is_deleted_before_its_events_are_durable() -> Replacements:
    """A replayed message is deleted as soon as the filter has moved past it."""
    right = Outcomes._resolve_alone

    def resolve_alone(self: Outcomes, in_flight: Probe | ReplayedMessageInFlight) -> bool:
        is_resolved = right(self, in_flight)
        if is_resolved and in_flight.unresolved:
            self._settle(in_flight)
        return is_resolved

    yield right, resolve_alone


@mutation(rules="S13", seed=28, quick=True)
def bytes_of_others_go_with_a_message() -> Replacements:
    """When a parked message is deleted, its bytes are deleted too, although other watchers' messages refer to them."""
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
    """The probes for one message count for the next message that fails."""
    right = Outcomes._pass

    def pass_(self: Outcomes, in_flight: LaneMessageInFlight) -> bool:
        probes = self._probes._probes.get(in_flight.backlog)
        goes_on = right(self, in_flight)
        if probes is not None:
            self._probes._probes[in_flight.backlog] = probes
        return goes_on

    yield right, pass_


@mutation(rules="S13", seed=10)
def a_replayed_message_that_fails_again_is_deleted() -> Replacements:
    """A replayed message fails again, and its row is deleted."""

    def mark_failed(
        self: ReplayedMessages, in_flight: ReplayedMessageInFlight, error: BaseException
    ) -> None:
        in_flight.is_dropped = True
        self._submit(in_flight.row, Replayed(in_flight.row.id))

    yield ReplayedMessages.mark_failed, mark_failed


@mutation(rules="S4", seed=48)
def events_of_a_replayed_message_are_stored_twice() -> Replacements:
    """The events of a replayed message have new keys, so the store has them twice."""

    def key(self: ReplayedMessageInFlight) -> str:
        return f"{self.row.key}#{self.row.id}"

    yield ReplayedMessageInFlight.key, key
