"""Bugs in the messages of queues that are stored for watchers that are behind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tests.simulation.mutations.registry import Replacements, answered, mutation
from tests.simulation.mutations.settled import moving_past
from triggerer.domain.watchers.parked import ParkedBounds, ParkedChange, Passed
from triggerer.store.database.script import Script
from triggerer.store.watchers import parked
from triggerer.store.watchers.parked_usage import ParkedUsage
from triggerer.streams.catchup.backlogs import queue_backlogs as queue_lags
from triggerer.streams.catchup.backlogs.backlog import Backlog
from triggerer.streams.catchup.backlogs.backlogs import Backlogs
from triggerer.streams.catchup.backlogs.stored_lane import StoredLane
from triggerer.streams.catchup.falling_behind.queue_decision import _QueueDecision
from triggerer.streams.catchup.processing.catch_up import CatchUp
from triggerer.streams.catchup.processing.outcomes import Outcomes
from triggerer.streams.catchup.reading.handover import Handover
from triggerer.streams.catchup.reading.queue_reader import QueueMessage, begin_giving
from triggerer.streams.delivery.group_state import GroupState
from triggerer.streams.supervision.member import Member


@mutation(rules="S13|S2/S7", seed=11, quick=True)
def a_stored_message_is_deleted_before_its_events_are_durable() -> Replacements:
    """A stored message is deleted as soon as the filter has moved past it."""
    yield from moving_past(lambda _: True)


@mutation(rules="S13|L1", seed=11)
def a_live_message_overtakes_stored_messages() -> Replacements:
    """A watcher goes live while the store still has messages for it."""
    right = Handover._has_nothing_left

    def has_nothing_left(self: Handover, backlog: Backlog, kept: StoredLane) -> bool:
        unread, kept.unread = kept.unread, 0
        is_empty = right(self, backlog, kept)
        kept.unread = unread
        return is_empty

    yield right, has_nothing_left


@mutation(rules="S13|L1|S2/S7", seed=85)
def stored_messages_are_lost_at_a_change_of_owner() -> Replacements:
    """A new owner does not read which messages are stored for its watchers."""
    right = queue_lags.begin_group

    def begin_group(backlogs: Backlogs, state: GroupState, members: Iterable[Member]) -> None:
        right(backlogs, state, ())

    yield right, begin_group


@mutation(rules="S13|L1", seed=28)
def a_watcher_that_caught_up_is_forgotten_too_soon() -> Replacements:
    """A watcher of a queue has caught up, and is forgotten before its events are durable."""
    right = GroupState._end_in_queue

    def end_in_queue(self: GroupState, backlog: Backlog) -> None:
        assert backlog.stored_lane is not None
        kept = backlog.stored_lane
        under_way, kept.in_flight_keys = kept.in_flight_keys, set()
        right(self, backlog)
        kept.in_flight_keys = under_way

    yield right, end_in_queue


@mutation(rules="L5", seed=11, quick=True)
def a_lane_of_a_queue_is_remembered_for_ever() -> Replacements:
    """The last stored message of a lane is gone, and the watcher's backlog there is still remembered."""

    def drop_passed(self: Outcomes, backlog: Backlog, kept: StoredLane) -> None:
        keys, kept.passed = tuple(kept.passed), []

        def note(_: Exception | None) -> None:
            kept.mark_gone(keys)

        self._parking.submit_change(backlog, Passed(keys), note)

    yield Outcomes._drop_passed, drop_passed


@mutation(rules="S9|S13|L1", seed=5714)
def a_repeat_at_the_bound_is_refused() -> Replacements:
    """At a bound the store refuses a message that it already has."""
    right = parked._store

    def store(
        changes: Iterable[ParkedChange], bounds: ParkedBounds, usage: ParkedUsage
    ) -> Script[list[ParkedChange]]:
        def answer(step: Any, rows: list[Any]) -> list[Any]:
            return [] if getattr(step, "statement", None) is parked.KNOWN else rows

        return answered(right(changes, bounds, usage), answer)

    yield right, store


@mutation(rules="S13|L1|S2/S7", seed=163)
def a_message_without_room_is_submitted_before_the_store_has_answered() -> Replacements:
    """A message without room is submitted again before the store has answered the previous submission."""

    def get(_: _QueueDecision) -> bool:
        return False

    def ignore(_: _QueueDecision, is_submitted: bool) -> None:
        pass

    yield _QueueDecision, vars(_QueueDecision)["is_submitted"], property(get, ignore)


@mutation(rules="S13", seed=12518)
def a_new_owner_makes_no_probe() -> Replacements:
    """A new owner gives the filter a message that has failed too often, without a probe."""

    def may_give(self: CatchUp, backlog: Backlog, message: QueueMessage) -> bool:
        if message.failures and not backlog.failures:
            backlog.failures = message.failures
        return begin_giving(backlog, message)

    yield CatchUp._may_give, may_give


@mutation(rules="S9", seed=21, quick=True)
def the_bound_of_parked_messages_is_ignored() -> Replacements:
    """More messages are stored for a watcher than its bound allows."""
    right = ParkedUsage.has_room

    def has_room(
        self: ParkedUsage, watcher_id: int, messages: int, size_bytes: int, bounds: ParkedBounds
    ) -> bool:
        wide = replace(bounds, max_messages=max(bounds.max_messages, 1_000))
        return right(self, watcher_id, messages, size_bytes, wide)

    yield right, has_room
