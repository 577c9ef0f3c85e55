"""The producer of a queue whose messages can be stored (contract, rule 18)."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from triggerer.testing.simulation.producer import SimulatedProducer

if TYPE_CHECKING:
    from triggerer.runtime.subscriber import Subscriber
    from triggerer.testing.simulation.broker import Broker
    from triggerer.testing.simulation.delivery import Message, Owner


class SimulatedQueue(SimulatedProducer):
    """A message is stored as its key: the broker's model keeps for ever what was published.

    Args:
        is_unordered: Each message is a lane of its own, as it is with a queue that keeps no order.
    """

    def __init__(
        self,
        broker: Broker,
        owner: Owner,
        cohort: Callable[[], dict[int, Subscriber | None]],
        *,
        is_unordered: bool,
    ) -> None:
        super().__init__(broker, owner, cohort)
        self._is_unordered = is_unordered
        if is_unordered:
            self.pauses_lanes = False  # type: ignore[misc]

    def lane_of(self, message: Message) -> Hashable:
        if self._is_unordered:
            return f"{message.lane}/{message.offset}"
        return super().lane_of(message)

    def dump_event(self, event: Any) -> bytes:
        return self._broker.message_of(event).key.encode()

    def load_event(self, data: bytes) -> Any:
        topic, lane, offset = data.decode().rsplit("/", 2)
        assert topic == self._broker.topic
        return self._broker.lanes[int(lane)].messages[int(offset)].event

    async def dead_letter(self, event: Any, reason: str) -> None:
        lagging = self._broker.checker.lagging
        message = self._broker.message_of(event)
        found = re.search(r"watcher (\d+)", reason)
        assert found is not None
        watcher = int(found[1])
        if reason.startswith("no more messages can be kept"):
            lagging.check_not_parked(watcher, message)
        await self._simulate_io()
        lagging.on_handed_over(watcher, message)
        await self._simulate_io()
