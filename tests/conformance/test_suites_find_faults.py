"""The conformance suites find the faults of bad plugins: each plugin here has one fault, and must fail a named case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import SkipTest

import pytest

from tests.conformance import faulty_producers as faulty
from tests.conformance import numbers_trigger as numbers
from triggerer.abc import BaseEventTrigger, SharedStreamProducer
from triggerer.errors import PluginError
from triggerer.testing import (
    Feature,
    InMemoryBroker,
    InMemoryProducer,
    InMemoryQueueProducer,
    ProducerConformance,
    TriggerConformance,
)


class Suite(ProducerConformance):
    features = frozenset(Feature)
    quiet_s = 0.01
    lock_s = 0.05
    patience_s = 0.3
    producer: type[InMemoryQueueProducer] = InMemoryProducer

    async def setup(self) -> None:
        self.broker = InMemoryBroker(max_deliveries=self.max_deliveries, lock_s=self.lock_s)

    async def publish(self, values: Sequence[str], lane: int = 0) -> None:
        self.broker.publish(*values, lane=lane)

    async def new_producer(self) -> SharedStreamProducer:
        return self.producer(self.broker)

    async def publish_unordered(self, values: Sequence[str]) -> None:
        self.broker.publish_unordered(*values)

    async def committed(self, lane: int = 0) -> int:
        return self.broker.committed(lane)

    async def dead_letters(self) -> list[str]:
        return self.broker.dead_letters

    async def recreate(self) -> None:
        await self.setup()

    async def seek(self, position: int, lane: int = 0) -> None:
        self.broker.seek(position, lane)


FAULTS = {
    faulty.CommitsPastFailed: "test_a_failed_message_is_not_passed_by_its_own_batch",
    faulty.CommitsOnDelivery: "test_nothing_is_committed_without_an_advance",
    faulty.CommitsWithoutSubscribers: "test_a_message_without_subscribers_is_not_committed",
    faulty.RedeliversRejected: "test_a_rejected_message_does_not_come_again",
    faulty.ForgetsToRedeliver: "test_a_failed_message_comes_again",
    faulty.KeysByDelivery: "test_a_redelivery_carries_the_same_key",
    faulty.KeysByValueOfLane: "test_keys_differ_from_message_to_message",
    faulty.KeysWithoutIncarnation: "test_a_recreated_source_gives_other_keys",
    faulty.PositionsWithoutIncarnation: "test_positions_tell_a_recreated_source_from_its_predecessor",
    faulty.CountsEachFailure: "test_a_failure_at_another_message_is_not_counted",
    faulty.CountsEachDelivery: "test_a_delivery_without_subscribers_is_not_counted",
    faulty.DropsRejected: "test_a_rejected_message_goes_to_the_dead_letters",
    faulty.DeniesDeadLetteringRejected: "test_a_rejected_message_goes_to_the_dead_letters",
    faulty.DeadLettersParkedMessages: "test_a_rejected_message_that_is_parked_is_no_dead_letter",
    faulty.TellsNoSizes: "test_a_longer_message_has_a_larger_size",
    faulty.OneLane: "test_a_stuck_lane_holds_up_no_other",
    faulty.IgnoresPause: "test_a_pause_stops_the_delivery_and_keeps_the_position",
    faulty.LosesPositionAtPause: "test_a_pause_stops_the_delivery_and_keeps_the_position",
    faulty.IgnoresPauseOfLanes: "test_a_paused_lane_delivers_nothing_while_the_others_go_on",
    faulty.PausesAllLanes: "test_a_paused_lane_delivers_nothing_while_the_others_go_on",
    faulty.LosesPositionOfPausedLane: "test_a_paused_lane_delivers_nothing_while_the_others_go_on",
    faulty.ResumesPausedLanesToo: "test_a_lane_stays_paused_while_the_stream_is_paused_and_resumed",
    faulty.ForgetsMessagesInFlightAtPauseOfLane: "test_an_advance_counts_while_its_lane_is_paused",
    faulty.RenewsNoLock: "test_a_message_in_flight_for_long_goes_to_no_other_producer",
    faulty.KeepsItsLocks: "test_the_messages_in_flight_of_a_closed_producer_go_to_the_next",
    faulty.LeavesTask: "test_each_published_message_is_delivered_once",
    faulty.CommitsWhenCancelled: "test_a_stream_that_is_cancelled_anywhere_loses_nothing",
    faulty.HangsAtClose: "test_a_producer_that_was_never_opened_can_be_closed",
    faulty.LosesItsPositionWhenCancelled: "test_an_advance_that_is_cancelled_anywhere_leaves_things_whole",
    faulty.ReadsFromTheNext: "test_a_lane_is_read_again_from_each_position",
    faulty.EndsAtTheEndOfTheLane: "test_read_lane_waits_for_new_messages",
    faulty.CommitsMessagesReadAgain: "test_reading_again_does_not_commit",
    faulty.KeysByReading: "test_messages_read_again_have_their_former_keys",
    faulty.HasOnePosition: "test_a_lane_is_read_again_from_each_position",
    faulty.IgnoresPredecessors: "test_a_position_of_a_predecessor_is_the_beginning",
    faulty.FindsTheEarliestOnly: "test_positions_are_found_by_time",
    faulty.ChangesStoredEvents: "test_an_event_is_the_same_after_it_was_stored_as_bytes",
    faulty.AcceptsAnyBytes: "test_other_bytes_are_no_event",
    faulty.DropsDeadLetters: "test_a_stored_event_can_be_dead_lettered",
    faulty.HasNoKeys: "test_a_message_has_a_key_and_a_lane_that_can_be_stored",
    faulty.HasLanesThatAreNotJson: "test_a_message_has_a_key_and_a_lane_that_can_be_stored",
    faulty.DumpsAReference: "test_another_producer_loads_dumped_events",
    faulty.HasALaneForEachDelivery: "test_a_redelivered_message_has_its_former_lane_and_key",
    faulty.CountsKilobytes: "test_a_size_is_in_bytes",
    faulty.DeadLettersOnlyReceivedMessages: "test_a_producer_can_dead_letter_a_message_that_it_never_received",
    faulty.HasOneLaneForAllWithoutOrder: "test_a_message_without_order_is_a_lane_of_its_own",
    faulty.GivesOneWithoutOrderAtATime: "test_a_message_without_order_that_is_stuck_holds_up_no_other",
    faulty.DumpsNothingForSome: "test_a_failing_watcher_misses_nothing_and_its_sibling_gets_all_once",
    faulty.RunReturns: "test_each_published_message_is_delivered_once",
    faulty.Reorders: "test_messages_of_a_lane_come_in_order",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found_by_its_case(fault: type[InMemoryQueueProducer]) -> None:
    suite = Suite()
    suite.producer = fault
    with pytest.raises(AssertionError):
        getattr(suite, FAULTS[fault])()


def test_a_skipped_case_names_the_missing_feature() -> None:
    class Bare(Suite):
        features = frozenset({"ordering"})

    with pytest.raises(SkipTest, match="Bare lacks dead_letter"):
        Bare().test_a_message_that_reaches_the_limit_is_dead_lettered_and_the_rest_goes_on()


@pytest.mark.parametrize("declared", ["ordering", {"order"}, 3])
def test_an_unknown_feature_is_refused_when_the_suite_is_declared(declared: Any) -> None:
    with pytest.raises(TypeError, match="features"):
        type("Wrong", (ProducerConformance,), {"features": declared})


def test_a_suite_that_cancels_nothing_is_refused_when_it_is_declared() -> None:
    with pytest.raises(TypeError, match="cancel_at is empty"):
        type("Wrong", (ProducerConformance,), {"cancel_at": ()})


TRIGGER_FAULTS = {
    numbers.SerialisesByTurns: "test_it_serialises_the_same_way_each_time",
    numbers.SerialisesObjects: "test_its_arguments_survive_json",
    numbers.ForgetsAnArgument: "test_it_can_be_made_again_from_its_arguments",
    numbers.NamesAnother: "test_its_class_path_leads_to_its_class",
    numbers.KeysByIdentity: "test_equal_triggers_have_equal_keys",
    numbers.KeysByHash: "test_its_key_is_the_same_in_every_process",
    numbers.KeysByTimes: "test_siblings_share_its_stream_and_strangers_do_not",
    numbers.KeysAlike: "test_siblings_share_its_stream_and_strangers_do_not",
    numbers.FilterReturnsAList: "test_it_is_an_async_generator",
    numbers.LagsByOne: "test_all_events_of_a_raw_event_are_yielded_before_the_next_pull",
    numbers.YieldsObjects: "test_its_events_can_be_stored",
    numbers.SelectsTheOthers: "test_its_selector_leaves_out_only_events_that_the_filter_ignores",
    numbers.SelectsNothingItRejects: "test_its_selector_leaves_out_only_events_that_the_filter_ignores",
    numbers.SwallowsErrors: "test_an_error_of_the_stream_comes_out_of_it",
    numbers.OutlivesCancellation: "test_it_ends_when_it_is_cancelled",
    numbers.TellsSeconds: "test_its_description_of_its_source_is_valid",
    numbers.TellsFindingsAsTexts: "test_its_description_of_its_source_is_valid",
    numbers.TellsAMapping: "test_its_description_of_its_source_is_valid",
    numbers.TellsAtOnce: "test_its_description_of_its_source_is_valid",
    numbers.AsksAlways: "test_its_description_of_its_source_is_valid",
    numbers.CleansUpWithoutARun: "test_cleanup_before_the_first_run_is_harmless",
}


@pytest.mark.parametrize("fault", TRIGGER_FAULTS, ids=lambda fault: fault.__name__)
def test_a_triggers_fault_is_found_by_its_case(fault: type[numbers.Evens]) -> None:
    suite = numbers.NumbersConformance()
    suite.kind = fault
    with pytest.raises((AssertionError, AttributeError, PluginError, TypeError)):
        getattr(suite, TRIGGER_FAULTS[fault])()


class TestEvens(numbers.NumbersConformance):
    """`Evens`, without a fault, passes every case."""

    patience_s = 10.0


class TestSelecting(numbers.NumbersConformance):
    """`Selecting`, a trigger with a selector, passes every case."""

    kind = numbers.Selecting
    patience_s = 10.0


class TestAlone(TriggerConformance):
    def new_trigger(self) -> BaseEventTrigger:
        return numbers.Alone()
