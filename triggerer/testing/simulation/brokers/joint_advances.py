"""Producers of queues that are told of several lanes in one call, as those of the product's queues are."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from triggerer.abc import AdvanceItem
from triggerer.testing.simulation.brokers.producer import SimulatedProducer
from triggerer.testing.simulation.brokers.queue_producer import SimulatedQueue

if TYPE_CHECKING:
    from triggerer.testing.simulation.kernel.delivery import Delivery

_MOST_ANSWERS: Final = 4
"""Of a call."""


class JointlyAdvanced(SimulatedProducer):
    """The broker is asked for some lanes after the others, in any order; what it has answered is reported, or not."""

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
        places = list(range(len(batches)))
        random.shuffle(places)
        answers = min(random.randint(1, _MOST_ANSWERS), len(places))
        unreported = list[int]()
        for number in range(answers):
            await self._wait_for_broker()
            for place in places[number::answers]:
                self._apply(batches[place])
                unreported.append(place)
            if random.random() < 0.5:
                self._end_advances(self.lane_checker.mark_reported, batches, unreported)
                report(unreported)
                unreported = []
        await self._wait_for_broker()
        self._end_advances(self.lane_checker.mark_advanced, batches, unreported)

    def _end_advances(
        self,
        note: Callable[[Hashable, list[Delivery]], None],
        batches: Sequence[Sequence[AdvanceItem]],
        places: Iterable[int],
    ) -> None:
        for place in places:
            payloads = [item.broker_payload for item in batches[place]]
            lane = self.lane_of(payloads[0].message)
            note(lane, payloads)
            self._advancing.discard(lane)


class SimulatedJointQueue(JointlyAdvanced, SimulatedQueue):
    """What somebody misses of it is stored."""
