"""The producer of a log whose lanes can be read again while the stream runs (contract, rule 18)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from datetime import datetime
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from triggerer.abc import AdvanceItem, ReportPassed
from triggerer.errors import BrokerUnavailable
from triggerer.synchronization import AutoResetEvent
from triggerer.testing.simulation.brokers.producer import SimulatedProducer
from triggerer.testing.simulation.kernel.delivery import Delivery, Reread, offset_of, position_in

if TYPE_CHECKING:
    from triggerer.testing.simulation.brokers.broker import Broker, Session
    from triggerer.testing.simulation.kernel.delivery import Cohort, Owner

_READERS: Final = 8


class SimulatedLog(SimulatedProducer):
    """A producer whose lanes can be read from any position, without any effect on the broker."""

    def __init__(
        self,
        broker: Broker,
        owner: Owner,
        cohort: Callable[[], Cohort],
    ) -> None:
        super().__init__(broker, owner, cohort)
        self._log = broker
        self._readers = 0

    def get_advance_lane(self, broker_payload: Delivery) -> Hashable:
        lane = super().get_advance_lane(broker_payload)
        self._log.checker.catching_up.broadcasts.record_outstanding(broker_payload)
        return lane

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        for item in batch:
            self._log.checker.catching_up.broadcasts.mark_decided(item.broker_payload)
        await super().advance(batch)
        for item in batch:
            self._log.checker.catching_up.mark_advanced(item.broker_payload)
        # The broker advances up to the first failed message, so record only the messages before it.
        clean = list(takewhile(lambda item: not item.outcome.failed, batch))
        if clean:
            last = clean[-1].broker_payload
            if not self._log.checker.catching_up.broadcasts.may_come_again(last):
                self._log.checker.rest.mark_advanced(last)

    def redeliver(self, session: Session, delivery: Delivery) -> None:
        self._log.checker.catching_up.mark_redelivered(delivery)
        session.rewind(delivery)

    def get_position(self, broker_payload: Delivery | Reread) -> list[Any]:
        message = broker_payload.message
        return position_in(self._log.lanes[message.lane], message.topic, message.offset)

    async def find_positions(self, start: datetime | None) -> Mapping[Hashable, list[Any]]:
        await self._ask()
        found: dict[Hashable, list[Any]] = {}
        for number, lane in enumerate(self._log.lanes):
            offset = lane.starts[-1] if start is None else lane.find(start)
            found[number] = position_in(lane, self._log.topic, offset)
        await self._ask()
        return found

    def read_lane(self, lane: Hashable, position: list[Any]) -> AsyncIterator[tuple[Any, Reread]]:
        return self.read_lane_reporting(lane, position, lambda _: None)

    async def read_lane_reporting(
        self, lane: Hashable, position: list[Any], report: ReportPassed
    ) -> AsyncIterator[tuple[Any, Reread]]:
        assert isinstance(lane, int)
        log = self._log
        offset = max(offset_of(log.lanes[lane], position), log.lanes[lane].starts[-1])
        arrived = AutoResetEvent()
        log.checker.trace("read_lane", stream=log.topic, lane=lane, offset=offset)
        self._readers += 1
        if self._readers > _READERS:
            log.checker.fail("S9", f"{self._readers} lanes are read again at once")
        log.readers[arrived] = None
        messages, starts = log.lanes[lane].messages, log.lanes[lane].starts
        incarnations = len(starts)
        try:
            await self._ask()
            while True:
                if len(starts) > incarnations:
                    raise BrokerUnavailable("the topic was created again")
                if offset >= len(messages):
                    if log.marking is not None:
                        report(position_in(log.lanes[lane], log.topic, offset))
                    await arrived.wait()
                    continue
                await self._ask()
                for message in messages[offset:]:
                    if len(starts) > incarnations:
                        break
                    yield message.event, Reread(message)
                    offset += 1
        finally:
            self._readers -= 1
            del log.readers[arrived]

    async def _ask(self) -> None:
        """Simulate a request to the broker: wait as long as it would take.

        At times, raise the error of a failed request, or wait up to a minute longer.
        """
        faults = self._log.faults
        await faults.delay()
        if faults.occur(self._log.scenario.broker_fault_rate):
            kind = faults.random.random()
            if kind < 0.3:
                raise asyncio.CancelledError("invented by a client library")
            if kind < 0.7:
                raise BrokerUnavailable("the broker hung up on a reader")
            await asyncio.sleep(faults.random.uniform(0.0, 60.0))
