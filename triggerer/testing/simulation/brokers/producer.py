"""A correct producer for the model of the broker, and a stream without acknowledgements (the fast path)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from triggerer.abc import AdvanceItem, SharedStreamProducer
from triggerer.errors import BrokerUnavailable
from triggerer.testing.simulation.checks.lane_checker import LaneChecker

if TYPE_CHECKING:
    from triggerer.testing.simulation.brokers.broker import Broker, Session
    from triggerer.testing.simulation.kernel.delivery import (
        Cohort,
        Delivery,
        Message,
        Owner,
        Reread,
    )
    from triggerer.testing.simulation.kernel.drawn_faults import FaultInjector


def _fail_sometimes(faults: FaultInjector, rate: float) -> None:
    if faults.occur(rate):
        raise _error_of(faults.random.random())


async def _fail_or_hang(faults: FaultInjector, rate: float) -> None:
    if faults.occur(rate):
        kind = faults.random.random()
        if kind > 0.9:
            # The broker never answers: wait until the caller is cancelled.
            await asyncio.get_running_loop().create_future()
        raise _error_of(kind)


def _error_of(kind: float) -> BaseException:
    if kind < 0.4:
        return asyncio.CancelledError("invented by a client library")
    return BrokerUnavailable("the broker hung up")


async def read_unacknowledged(broker: Broker, owner: Owner) -> AsyncIterator[Delivery]:
    """Yield messages as the fast path does: each is acknowledged on delivery. They are numbered from 1."""
    faults, rate = broker.faults, broker.scenario.broker_fault_rate
    await faults.delay()
    if faults.occur(rate):
        raise BrokerUnavailable("the broker does not answer")
    session = broker.connect(owner)
    number = 0
    try:
        while True:
            await faults.delay()
            _fail_sometimes(faults, rate / 4)
            delivery = session.take()
            if delivery is None:
                await session.wait()
            elif broker.acknowledge_on_delivery(delivery):
                number += 1
                delivery.number = number
                broker.checker.on_broadcast(delivery)
                yield delivery
                # The runtime pulls again, so it has broadcast the last delivery.
                broker.checker.check_lease(delivery, "broadcasts")
    finally:
        broker.disconnect(session)


class SimulatedProducer(SharedStreamProducer):
    """Commits a log's lane up to its first message that is not done, and redelivers failed messages."""

    def __init__(
        self,
        broker: Broker,
        owner: Owner,
        cohort: Callable[[], Cohort],
    ) -> None:
        self.lanes_advance_side_by_side = broker.scenario.side_by_side  # type: ignore[misc]
        self.pauses_lanes = broker.scenario.pauses_lanes  # type: ignore[misc]
        self.lane_checker = LaneChecker(broker.scenario, broker.checker, self.lane_of)
        self._broker = broker
        self._owner = owner
        self._cohort = cohort
        self._done: dict[tuple[int, int], set[int]] = {}
        self._broadcasts: dict[Hashable, list[int]] = {}
        self._numbers = 0
        self._session: Session | None = None
        self._closed = 0
        self._advancing: set[Hashable] = set()

    async def open_stream(self) -> AsyncIterator[tuple[Any, Delivery]]:
        faults, rate = self._broker.faults, self._broker.scenario.broker_fault_rate
        await faults.delay()
        if faults.occur(rate):
            raise BrokerUnavailable("the broker does not answer")
        session = self._session = self._broker.connect(self._owner)
        session.lane_checker = self.lane_checker
        while True:
            await faults.delay()
            _fail_sometimes(faults, rate / 4)
            if session.is_void:
                raise BrokerUnavailable("the topic was created again")
            delivery = session.take()
            if delivery is not None:
                delivery.confirm_broadcast = self.lane_checker.record_broadcast
                self.lane_checker.mark_yielded(delivery)
                self._broker.checker.catching_up.broadcasts.mark_pulled(delivery)
                yield delivery.message.event, delivery
                self.lane_checker.mark_pulled()
            else:
                await session.wait()

    def get_advance_lane(self, broker_payload: Delivery) -> Hashable:
        """Return the lane of a delivery, and record the delivery's cohort: the watchers that must resolve the message.

        The runtime may call this method before the broadcast, to check the bounds. The call at the broadcast replaces
        the cohort. Later calls change nothing.
        """
        lane = self.lane_of(broker_payload.message)
        if broker_payload.is_broadcast:
            return lane
        if broker_payload.number < 0:
            self._numbers += 1
            broker_payload.number = self._numbers
            self._broadcasts.setdefault(lane, []).append(self._numbers)
        broker_payload.cohort, broker_payload.triggers = self._cohort()
        broker_payload.is_under_lease = not self._broker.checker.is_lease_over(self._owner)
        self.lane_checker.mark_considered(broker_payload)
        return lane

    def lane_of(self, message: Message) -> Hashable:
        """Return the lane to which a message belongs: here the broker's lane."""
        return message.lane

    def get_size(self, broker_payload: Delivery | Reread) -> int:
        return broker_payload.message.size_bytes

    def get_idempotency_key(self, broker_payload: Delivery | Reread) -> str | None:
        return broker_payload.message.key

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        lane = self._begin_advance(batch)
        try:
            await self._wait_for_broker()
            self._apply(batch)
            await self._wait_for_broker()
            self.lane_checker.mark_advanced(lane, [item.broker_payload for item in batch])
        finally:
            self._advancing.discard(lane)

    def _begin_advance(self, batch: Sequence[AdvanceItem]) -> Hashable:
        """Check that the batch is next in its lane, and that the lease holds. Return the lane."""
        lane = self.lane_of(batch[0].broker_payload.message)
        self._record_order(lane, batch)
        self._broker.checker.check_lease(batch[0].broker_payload, "advances")
        self._advancing.add(lane)
        return lane

    async def _wait_for_broker(self) -> None:
        faults = self._broker.faults
        await faults.delay()
        await _fail_or_hang(faults, self._broker.scenario.broker_fault_rate)

    def _apply(self, batch: Sequence[AdvanceItem]) -> None:
        """Check a batch, and apply its outcomes to the broker."""
        for item in batch:
            self.lane_checker.record_broadcast(item.broker_payload)
            self._broker.checker.on_advance(item.broker_payload, item.outcome)
        self._apply_outcomes(batch)

    def _record_order(self, lane: Hashable, batch: Sequence[AdvanceItem]) -> None:
        checker = self._broker.checker
        given = [item.broker_payload.number for item in batch]
        expected = self._broadcasts[lane][: len(given)]
        del self._broadcasts[lane][: len(given)]
        if given != expected:
            checker.fail("S5", f"lane {lane}: advance of {given}, expected {expected}")
        if lane in self._advancing:
            checker.fail("S5", f"lane {lane}: a second advance before the first returned")
        if self._advancing and not self.lanes_advance_side_by_side:
            checker.fail("S5", f"lane {lane}: advanced together with {self._advancing}")
        if self._closed:
            checker.fail("S6", "advance after aclose")

    def _apply_outcomes(self, batch: Sequence[AdvanceItem]) -> None:
        """Commit or acknowledge messages that did not fail. Redeliver the others, or dead-letter them at the limit."""
        for delivery, outcome in batch:
            if outcome.is_clean or (outcome.rejected and not outcome.failed):
                self._mark_done(delivery)
            elif self._is_at_limit(delivery):
                self._broker.checker.on_dead_letter(delivery)
                self._mark_done(delivery)
            else:
                assert self._session is not None
                self.redeliver(self._session, delivery)
        if self._broker.scenario.is_log:
            last = batch[-1].broker_payload
            self._broker.commit(last, self._position(last))

    def redeliver(self, session: Session, delivery: Delivery) -> None:
        """Let the broker deliver a failed message again."""
        session.redeliver_later(delivery)

    def _is_at_limit(self, delivery: Delivery) -> bool:
        lane = self._broker.lanes[delivery.message.lane]
        return lane.deliveries[delivery.message.offset] >= self._broker.scenario.delivery_limit

    def _mark_done(self, delivery: Delivery) -> None:
        if self._broker.scenario.is_log:
            at = (delivery.message.lane, delivery.generation)
            self._done.setdefault(at, set()).add(delivery.message.offset)
        else:
            self._broker.acknowledge(delivery)

    def _position(self, delivery: Delivery) -> int:
        """Return the offset of the lane's first message that is not done.

        Ignore messages that were done under an earlier assignment of the lane, see `Delivery.generation`.
        """
        done = self._done.get((delivery.message.lane, delivery.generation), set())
        position = self._broker.lanes[delivery.message.lane].position
        while position in done:
            position += 1
        return position

    # Flow control

    async def pause(self) -> None:
        self.lane_checker.record_pause()
        await self._simulate_io()

    async def resume(self) -> None:
        self.lane_checker.record_resume()
        await self._simulate_io()

    async def pause_lane(self, lane: Hashable) -> None:
        assert isinstance(lane, int)
        self._broker.checker.trace("pause_lane", stream=self._broker.topic, lane=lane)
        with self.lane_checker.pausing(lane):
            await self._simulate_io()
            if self._session is not None:
                self._session.pause_lane(lane)
            await self._simulate_io()

    async def resume_lane(self, lane: Hashable) -> None:
        assert isinstance(lane, int)
        self._broker.checker.trace("resume_lane", stream=self._broker.topic, lane=lane)
        with self.lane_checker.resuming(lane):
            await self._simulate_io()
            if self._session is not None:
                self._session.resume_lane(lane)
            await self._simulate_io()

    async def _simulate_io(self) -> None:
        faults = self._broker.faults
        await faults.delay()
        _fail_sometimes(faults, self._broker.scenario.broker_fault_rate / 4)

    async def aclose(self) -> None:
        self._closed += 1
        if self._closed > 1:
            self._broker.checker.fail("S6", "aclose was called twice")
        if self._session is not None:
            self._broker.disconnect(self._session)
        faults = self._broker.faults
        await faults.delay()
        if faults.occur(self._broker.scenario.broker_fault_rate):
            raise BrokerUnavailable("the connection is gone already")
