"""Bugs in how a watcher of a log catches up."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from itertools import islice

from tests.simulation.mutations.registry import Replacements, mutation
from tests.simulation.mutations.settled import moving_past
from triggerer.domain.events import Fence
from triggerer.domain.watchers.lane_positions import Position
from triggerer.hosting.reconciliation import Reconciliation
from triggerer.store.watchers.hosting import TriggerRow
from triggerer.streams.catchup.backlogs.backlog import Backlog
from triggerer.streams.catchup.backlogs.rewind import Rewind
from triggerer.streams.catchup.processing.catch_up_tasks import CatchUpTasks
from triggerer.streams.catchup.processing.derived_events import CatchUpDeriver
from triggerer.streams.catchup.processing.in_flight import LaneMessageInFlight
from triggerer.streams.catchup.reading import lane_tail
from triggerer.streams.catchup.reading.lane_tail import LaneTail, LogMessage
from triggerer.streams.catchup.reading.queue_reader import QueueMessage
from triggerer.streams.delivery.admission import Admission
from triggerer.streams.delivery.group_state import GroupState
from triggerer.streams.supervision.member import Member, TriggerSpec


@mutation(rules="S13|S2/S7", seed=11, quick=True)
def a_position_moves_before_its_events_are_durable() -> Replacements:
    """A position moves past a message whose events are not durable yet."""
    yield from moving_past(lambda in_flight: in_flight.derived > 0)


@mutation(rules="S13|S2/S7", seed=10, quick=True)
def a_position_is_lost_at_a_change_of_owner() -> Replacements:
    """A new owner does not read the positions of its watchers."""
    right = Reconciliation._spec

    def spec(self: Reconciliation, row: TriggerRow, fence: Fence) -> TriggerSpec:
        return replace(right(self, row, fence), positions=())

    yield right, spec


@mutation(rules="S13|S2/S7", seed=31)
def a_reader_of_the_lane_tail_misses_dropped_messages() -> Replacements:
    """Messages are dropped from the lane tail while a reader reads it. The reader does not notice the gap."""
    right = LaneTail.after

    def after(self: LaneTail, position: Position, most: int) -> list[LogMessage] | None:
        if most == 1:
            return right(self, position, most)
        at = bisect_left(self._messages, position[1], key=lane_tail._number)
        return list(islice(self._messages, at, at + most))

    yield right, after


@mutation(rules="S13|S2/S7", seed=365)
def a_row_that_was_read_before_it_went_counts() -> Replacements:
    """A new trigger's position is read, the watcher then catches up, and the runtime still uses the position."""
    right = CatchUpTasks._load_backlogs

    def load_lags(self: CatchUpTasks, member: Member) -> None:
        for watcher in member.source.watchers:
            self._loaded.pop(watcher, None)
        right(self, member)

    yield right, load_lags


@mutation(rules="S13|S2/S7|L5", seed=574)
def only_the_first_watcher_of_a_trigger_is_known_to_be_behind() -> Replacements:
    """Several watchers share a trigger, and a new owner reads only the first one's position."""
    right = CatchUpTasks._load_backlogs

    def load_lags(self: CatchUpTasks, member: Member) -> None:
        spec, first = member.spec, member.source.watchers[:1]
        ids = {watcher.watcher_id for watcher in first}
        member.spec = replace(
            spec, positions=tuple(row for row in spec.positions if row.watcher_id in ids)
        )
        right(self, member)
        member.spec = spec

    yield right, load_lags


@mutation(rules="S13|S2/S7", seed=4104)
def a_watcher_that_caught_up_gets_nothing_of_a_shared_trigger() -> Replacements:
    """All watchers of a trigger have caught up, and some of them still get none of its events."""

    def open_to_all(self: Admission) -> None:
        pass

    yield Admission.open_to_all, open_to_all


@mutation(rules="L5", seed=2063)
def the_lane_tail_of_a_deleted_watcher_stays() -> Replacements:
    """A watcher is deleted, and the lane tails of its lanes stay in memory."""

    def trim_lane_tail(self: GroupState) -> None:
        pass

    yield GroupState.trim_lane_tail, trim_lane_tail


@mutation(rules="S13", seed=81)
def a_reemitted_event_has_its_ordinary_key() -> Replacements:
    """A watcher re-emits events under their first keys, so the store treats them as repeats."""

    def key(self: LaneMessageInFlight) -> str | None:
        message = self.message
        return message.key if isinstance(message, QueueMessage) else self._key_of(message.payload)

    yield LaneMessageInFlight.key, key


@mutation(rules="S13|L1", seed=81, quick=True)
def a_rewound_watcher_reads_nothing_again() -> Replacements:
    """A rewound watcher counts as having read to the end of its lane."""
    right = Rewind._make

    def make(self: Rewind) -> Backlog:
        backlog = right(self)
        backlog.cursor = self._end
        return backlog

    yield right, make


@mutation(rules="S13|S2/S7", seed=2634)
def catch_up_passes_messages_after_the_lease_is_over() -> Replacements:
    """The lease is over, and a watcher that catches up passes messages whose events are not stored."""

    async def wait_to_be_closed(self: CatchUpDeriver) -> None:
        pass

    yield CatchUpDeriver._wait_to_be_closed, wait_to_be_closed
