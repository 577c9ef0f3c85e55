"""Producers with one fault each, which a case of the producers' conformance suite must find."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from triggerer.abc import AdvanceItem, SharedStreamProducer
from triggerer.testing import (
    InMemoryBroker,
    InMemoryMessage,
    InMemoryProducer,
    InMemoryQueueProducer,
)
from triggerer.testing.conformance.driver import FAILED, NOBODY


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
    """The keys lack the incarnation. So messages of a recreated log have the keys of the deleted log's messages."""

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
    """Dead-letters the rejected messages, but denies that it does. So the runtime would park them too."""

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
    """When it is cancelled, it commits all messages."""

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
