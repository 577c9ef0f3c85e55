"""Producers that advance several lanes of a queue in one call, as real producers do."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from triggerer.abc import AdvanceItem
from triggerer.testing.simulation.brokers.producer import SimulatedProducer
from triggerer.testing.simulation.brokers.queue_producer import SimulatedQueue

if TYPE_CHECKING:
    from triggerer.testing.simulation.kernel.delivery import Delivery

_MOST_REQUESTS: Final = 4
"""The most requests to the broker that one call makes."""


class JointlyAdvanced(SimulatedProducer):
    """Advances the lanes in several requests, in any order, and reports some lanes before the call returns."""

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        self._broker.checker.fail("S5", f"{batch} is advanced alone")

    async def advance_lanes(
        self,
        batches: Sequence[Sequence[AdvanceItem]],
        report: Callable[[Iterable[int]], None] = lambda _: None,
    ) -> None:
        random = self._broker.faults.random
        for batch in batches:
            self._begin_advance(batch)
        numbers = list(range(len(batches)))
        random.shuffle(numbers)
        requests = min(random.randint(1, _MOST_REQUESTS), len(numbers))
        unreported = list[int]()
        for request in range(requests):
            await self._wait_for_broker()
            for number in numbers[request::requests]:
                self._apply(batches[number])
                unreported.append(number)
            if random.random() < 0.5:
                self._end_advances(self.lane_checker.mark_reported, batches, unreported)
                report(unreported)
                unreported = []
        await self._wait_for_broker()
        self._end_advances(self.lane_checker.mark_advanced, batches, unreported)

    def _end_advances(
        self,
        record: Callable[[Hashable, list[Delivery]], None],
        batches: Sequence[Sequence[AdvanceItem]],
        numbers: Iterable[int],
    ) -> None:
        for number in numbers:
            payloads = [item.broker_payload for item in batches[number]]
            lane = self.lane_of(payloads[0].message)
            record(lane, payloads)
            self._advancing.discard(lane)


class SimulatedJointQueue(JointlyAdvanced, SimulatedQueue):
    """A queue's producer that stores messages, and advances several lanes in one call."""
