"""The suites find their faults: each faulty double here must fail the case that is named for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from unittest import SkipTest

import anyio
import pytest
from anyio.lowlevel import checkpoint

from tests.conformance import numbers_trigger as numbers
from triggerer.abc import AdvanceItem, BaseEventTrigger, SharedStreamProducer
from triggerer.errors import PluginError
from triggerer.testing import (
    Feature,
    InMemoryBroker,
    InMemoryMessage,
    InMemoryProducer,
    InMemoryQueueProducer,
    ProducerConformance,
    TriggerConformance,
)
from triggerer.testing.conformance.driver import FAILED, NOBODY


class Suite(ProducerConformance):
    features = frozenset(Feature)
    quiet_s = 0.01
    lock_s = 0.05
    patience_s = 0.3
    faulty: type[InMemoryQueueProducer] = InMemoryProducer

    async def setup(self) -> None:
        self.broker = InMemoryBroker(max_deliveries=self.max_deliveries, lock_s=self.lock_s)

    async def publish(self, values: Sequence[str], lane: int = 0) -> None:
        self.broker.publish(*values, lane=lane)

    async def new_producer(self) -> SharedStreamProducer:
        return self.faulty(self.broker)

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


class CommitsPastFailed(InMemoryProducer):
    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        await checkpoint()
        last = batch[-1].broker_payload
        self._broker.logs()[last.lane].committed = last.offset + 1


class CommitsOnDelivery(InMemoryProducer):
    def _next(self) -> InMemoryMessage | None:
        message = super()._next()
        if message is not None:
            self._broker.logs()[message.lane].committed = message.offset + 1
        return message


class CommitsWithoutSubscribers(InMemoryProducer):
    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        seen = [
            one if one.outcome.failed else one._replace(outcome=type(one.outcome)(1, 0, 0))
            for one in batch
        ]
        await super().advance(seen)


class RedeliversRejected(InMemoryProducer):
    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        await super().advance(
            [
                one._replace(outcome=type(one.outcome)(0, 1, 0)) if one.outcome.rejected else one
                for one in batch
            ]
        )


class ForgetsToRedeliver(InMemoryProducer):
    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        await checkpoint()
        for message, outcome in batch:
            log = self._broker.logs()[message.lane]
            if not outcome.is_clean or log.committed != message.offset:
                return
            log.committed += 1


class KeysByDelivery(InMemoryProducer):
    def get_idempotency_key(self, broker_payload: InMemoryMessage) -> str:
        return f"{id(self)}/{super().get_idempotency_key(broker_payload)}"


class KeysByValueOfLane(InMemoryProducer):
    def get_idempotency_key(self, broker_payload: InMemoryMessage) -> str:
        return str(broker_payload.offset)


class KeysWithoutIncarnation(InMemoryProducer):
    """A message has the key of the predecessor's message at the same offset."""

    def get_idempotency_key(self, broker_payload: InMemoryMessage) -> str:
        return f"numbers/{broker_payload.lane}/{broker_payload.offset}"


class PositionsWithoutIncarnation(InMemoryProducer):
    def get_position(self, broker_payload: InMemoryMessage) -> list[Any]:
        return ["numbers", broker_payload.offset]

    async def read_lane(
        self, lane: Hashable, position: list[Any]
    ) -> AsyncIterator[tuple[Any, InMemoryMessage]]:
        identity = self._broker.identity if position[0] == "numbers" else position[0]
        async for item in super().read_lane(lane, [identity, position[1]]):
            yield item


class CountsEachFailure(InMemoryProducer):
    """Counts a failure against a message even if the watcher failed at another message."""

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        await super().advance(
            [one._replace(outcome=replace(one.outcome, unread=0)) for one in batch]
        )


class CountsEachDelivery(InMemoryProducer):
    """Counts a failure against a message even if it had no subscribers."""

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        await super().advance(
            [one._replace(outcome=FAILED) if one.outcome == NOBODY else one for one in batch]
        )


class DropsRejected(InMemoryProducer):
    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        await super().advance(
            [one._replace(outcome=replace(one.outcome, is_set_aside=True)) for one in batch]
        )


class DeniesDeadLetteringRejected(InMemoryProducer):
    """The runtime would park the message although it is dead-lettered."""

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        dead = [one.broker_payload.value for one in batch if one.outcome.rejected]
        await super().advance(batch)
        self._broker.dead_letters += dead

    def dead_letters_rejected(self, broker_payload: InMemoryMessage) -> bool:
        return False


class DeadLettersParkedMessages(InMemoryProducer):
    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        await super().advance(
            [one._replace(outcome=replace(one.outcome, is_set_aside=False)) for one in batch]
        )


class TellsNoSizes(InMemoryProducer):
    get_size = SharedStreamProducer.get_size


class OneLane(InMemoryProducer):
    def get_advance_lane(self, broker_payload: InMemoryMessage) -> None:
        return None


class IgnoresPause(InMemoryProducer):
    async def pause(self) -> None:
        pass


class LosesPositionAtPause(InMemoryProducer):
    async def resume(self) -> None:
        for reading in self._readings.values():
            reading.position = 0
        await super().resume()


class IgnoresPauseOfLanes(InMemoryProducer):
    async def pause_lane(self, lane: Hashable) -> None:
        pass


class PausesAllLanes(InMemoryProducer):
    async def pause_lane(self, lane: Hashable) -> None:
        await self.pause()

    async def resume_lane(self, lane: Hashable) -> None:
        await self.resume()


class LosesPositionOfPausedLane(InMemoryProducer):
    async def pause_lane(self, lane: Hashable) -> None:
        self._readings[lane].position += 1
        await super().pause_lane(lane)


class ResumesPausedLanesToo(InMemoryProducer):
    async def resume(self) -> None:
        self._paused_lanes.clear()
        await super().resume()


class ForgetsMessagesInFlightAtPauseOfLane(InMemoryProducer):
    async def pause_lane(self, lane: Hashable) -> None:
        self._readings[lane].delivery += 1
        await super().pause_lane(lane)


class RenewsNoLock(InMemoryProducer):
    def _renew(self) -> None:
        pass


class KeepsItsLocks(InMemoryProducer):
    async def aclose(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            self._broker.lock_s = 60
            for log in self._broker.logs().values():
                log.locked_until += 60


class LeavesTask(InMemoryProducer):
    async def open_stream(self) -> AsyncIterator[tuple[Any, InMemoryMessage]]:
        self._task = asyncio.ensure_future(anyio.sleep(3600))
        async for item in super().open_stream():
            yield item


class CommitsWhenCancelled(InMemoryProducer):
    """Treats its own cancellation as the success of every message."""

    async def open_stream(self) -> AsyncIterator[tuple[Any, InMemoryMessage]]:
        try:
            async for item in super().open_stream():
                yield item
        except asyncio.CancelledError:
            for log in self._broker.logs().values():
                log.committed = len(log.values)
            raise


class HangsAtClose(InMemoryProducer):
    async def aclose(self) -> None:
        await super().aclose()
        await anyio.sleep(3600)


class LosesItsPositionWhenCancelled(InMemoryProducer):
    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        try:
            await super().advance(batch)
        except asyncio.CancelledError:
            last = batch[-1].broker_payload
            self._broker.logs()[last.lane].committed = last.offset + 2
            raise


class ReadsFromTheNext(InMemoryProducer):
    async def read_lane(
        self, lane: Hashable, position: list[Any]
    ) -> AsyncIterator[tuple[Any, InMemoryMessage]]:
        identity, offset = position
        async for item in super().read_lane(lane, [identity, offset + 1]):
            yield item


class EndsAtTheEndOfTheLane(InMemoryProducer):
    async def read_lane(
        self, lane: Hashable, position: list[Any]
    ) -> AsyncIterator[tuple[Any, InMemoryMessage]]:
        end = len(self._broker.logs()[lane].values)
        async for event, message in super().read_lane(lane, position):
            yield event, message
            if message.offset + 1 == end:
                return


class CommitsMessagesReadAgain(InMemoryProducer):
    async def read_lane(
        self, lane: Hashable, position: list[Any]
    ) -> AsyncIterator[tuple[Any, InMemoryMessage]]:
        async for event, message in super().read_lane(lane, position):
            self._broker.logs()[lane].committed = message.offset + 1
            yield event, message


class KeysByReading(InMemoryProducer):
    def get_idempotency_key(self, broker_payload: InMemoryMessage) -> str:
        return f"{super().get_idempotency_key(broker_payload)}/{id(broker_payload)}"


class HasOnePosition(InMemoryProducer):
    def get_position(self, broker_payload: InMemoryMessage) -> list[Any]:
        return [self._broker.identity, 0]


class IgnoresPredecessors(InMemoryProducer):
    async def read_lane(
        self, lane: Hashable, position: list[Any]
    ) -> AsyncIterator[tuple[Any, InMemoryMessage]]:
        async for item in super().read_lane(lane, [self._broker.identity, position[1]]):
            yield item


class FindsTheEarliestOnly(InMemoryProducer):
    async def find_positions(self, start: datetime | None) -> Mapping[Hashable, list[Any]]:
        return await super().find_positions(None)


class ChangesStoredEvents(InMemoryProducer):
    def load_event(self, data: bytes) -> Any:
        return str(super().load_event(data)).upper()


class AcceptsAnyBytes(InMemoryProducer):
    def load_event(self, data: bytes) -> Any:
        return "a"


class DropsDeadLetters(InMemoryProducer):
    async def dead_letter(self, event: Any, reason: str) -> None:
        pass


class HasNoKeys(InMemoryQueueProducer):
    def get_idempotency_key(self, broker_payload: InMemoryMessage) -> str | None:  # type: ignore[override]
        return None


class HasLanesThatAreNotJson(InMemoryQueueProducer):
    def get_advance_lane(self, broker_payload: InMemoryMessage) -> Hashable:
        return frozenset({broker_payload.lane})


class DumpsAReference(InMemoryQueueProducer):
    """Dumps only a number, and needs its own memory to load the event."""

    def __init__(self, broker: InMemoryBroker) -> None:
        super().__init__(broker)
        self._dumped: list[Any] = []

    def dump_event(self, event: Any) -> bytes:
        self._dumped.append(event)
        return str(len(self._dumped) - 1).encode()

    def load_event(self, data: bytes) -> Any:
        number = int(data)
        return self._dumped[number] if number < len(self._dumped) else "lost"


class HasALaneForEachDelivery(InMemoryQueueProducer):
    def get_advance_lane(self, broker_payload: InMemoryMessage) -> Hashable:
        return (broker_payload.lane, broker_payload.delivery)


class CountsKilobytes(InMemoryQueueProducer):
    def get_size(self, broker_payload: InMemoryMessage) -> int:
        return super().get_size(broker_payload) // 1024


class DeadLettersOnlyReceivedMessages(InMemoryQueueProducer):
    def _next(self) -> InMemoryMessage | None:
        message = super()._next()
        if message is not None:
            self._had = {*getattr(self, "_had", ()), message.value}
        return message

    async def dead_letter(self, event: Any, reason: str) -> None:
        if event in self._had:
            await super().dead_letter(event, reason)


class HasOneLaneForAllWithoutOrder(InMemoryQueueProducer):
    def get_advance_lane(self, broker_payload: InMemoryMessage) -> Hashable:
        lane = broker_payload.lane
        return "no order" if isinstance(lane, tuple) else lane


class GivesOneWithoutOrderAtATime(InMemoryQueueProducer):
    def _next(self) -> InMemoryMessage | None:
        logs = self._broker.logs()
        if any(logs[lane].committed < one.position for lane, one in self._readings.items()):
            return None
        return super()._next()


class DumpsNothingForSome(InMemoryQueueProducer):
    def dump_event(self, event: Any) -> bytes | None:  # type: ignore[override]
        return None if event == "b" else super().dump_event(event)


class RunReturns(InMemoryProducer):
    async def run(self) -> None:
        await checkpoint()


class Reorders(InMemoryProducer):
    def _next(self) -> InMemoryMessage | None:
        one, other = super()._next(), super()._next()
        self._kept = one
        return other or one


FAULTS = {
    CommitsPastFailed: "test_a_failed_message_is_not_passed_by_its_own_batch",
    CommitsOnDelivery: "test_nothing_is_committed_without_an_advance",
    CommitsWithoutSubscribers: "test_a_message_without_subscribers_is_not_committed",
    RedeliversRejected: "test_a_rejected_message_does_not_come_again",
    ForgetsToRedeliver: "test_a_failed_message_comes_again",
    KeysByDelivery: "test_a_redelivery_carries_the_same_key",
    KeysByValueOfLane: "test_keys_differ_from_message_to_message",
    KeysWithoutIncarnation: "test_a_recreated_source_gives_other_keys",
    PositionsWithoutIncarnation: "test_positions_tell_a_recreated_source_from_its_predecessor",
    CountsEachFailure: "test_a_failure_at_another_message_is_not_counted",
    CountsEachDelivery: "test_a_delivery_without_subscribers_is_not_counted",
    DropsRejected: "test_a_rejected_message_goes_to_the_dead_letters",
    DeniesDeadLetteringRejected: "test_a_rejected_message_goes_to_the_dead_letters",
    DeadLettersParkedMessages: "test_a_rejected_message_that_is_parked_is_no_dead_letter",
    TellsNoSizes: "test_a_longer_message_has_a_larger_size",
    OneLane: "test_a_stuck_lane_holds_up_no_other",
    IgnoresPause: "test_a_pause_stops_the_delivery_and_keeps_the_position",
    LosesPositionAtPause: "test_a_pause_stops_the_delivery_and_keeps_the_position",
    IgnoresPauseOfLanes: "test_a_paused_lane_delivers_nothing_while_the_others_go_on",
    PausesAllLanes: "test_a_paused_lane_delivers_nothing_while_the_others_go_on",
    LosesPositionOfPausedLane: "test_a_paused_lane_delivers_nothing_while_the_others_go_on",
    ResumesPausedLanesToo: "test_a_lane_stays_paused_while_the_stream_is_paused_and_resumed",
    ForgetsMessagesInFlightAtPauseOfLane: "test_an_advance_counts_while_its_lane_is_paused",
    RenewsNoLock: "test_a_message_in_flight_for_long_goes_to_no_other_producer",
    KeepsItsLocks: "test_the_messages_in_flight_of_a_closed_producer_go_to_the_next",
    LeavesTask: "test_each_published_message_is_delivered_once",
    CommitsWhenCancelled: "test_a_stream_that_is_cancelled_anywhere_loses_nothing",
    HangsAtClose: "test_a_producer_that_was_never_opened_can_be_closed",
    LosesItsPositionWhenCancelled: "test_an_advance_that_is_cancelled_anywhere_leaves_things_whole",
    ReadsFromTheNext: "test_a_lane_is_read_again_from_each_position",
    EndsAtTheEndOfTheLane: "test_read_lane_waits_for_new_messages",
    CommitsMessagesReadAgain: "test_reading_again_does_not_commit",
    KeysByReading: "test_messages_read_again_have_their_former_keys",
    HasOnePosition: "test_a_lane_is_read_again_from_each_position",
    IgnoresPredecessors: "test_a_position_of_a_predecessor_is_the_beginning",
    FindsTheEarliestOnly: "test_positions_are_found_by_time",
    ChangesStoredEvents: "test_an_event_is_the_same_after_it_was_stored_as_bytes",
    AcceptsAnyBytes: "test_other_bytes_are_no_event",
    DropsDeadLetters: "test_a_stored_event_can_be_dead_lettered",
    HasNoKeys: "test_a_message_has_a_key_and_a_lane_that_can_be_stored",
    HasLanesThatAreNotJson: "test_a_message_has_a_key_and_a_lane_that_can_be_stored",
    DumpsAReference: "test_another_producer_loads_dumped_events",
    HasALaneForEachDelivery: "test_a_redelivered_message_has_its_former_lane_and_key",
    CountsKilobytes: "test_a_size_is_in_bytes",
    DeadLettersOnlyReceivedMessages: "test_a_producer_can_dead_letter_a_message_that_it_never_received",
    HasOneLaneForAllWithoutOrder: "test_a_message_without_order_is_a_lane_of_its_own",
    GivesOneWithoutOrderAtATime: "test_a_message_without_order_that_is_stuck_holds_up_no_other",
    DumpsNothingForSome: "test_a_failing_watcher_misses_nothing_and_its_sibling_gets_all_once",
    RunReturns: "test_each_published_message_is_delivered_once",
    Reorders: "test_messages_of_a_lane_come_in_order",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found_by_its_case(fault: type[InMemoryQueueProducer]) -> None:
    suite = Suite()
    suite.faulty = fault
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
