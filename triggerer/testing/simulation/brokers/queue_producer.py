"""The producer of a queue whose messages can be stored (contract, rule 18)."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from triggerer.testing.simulation.brokers.stored_messages import StoresMessages

if TYPE_CHECKING:
    from triggerer.testing.simulation.brokers.broker import Broker
    from triggerer.testing.simulation.kernel.delivery import Cohort, Message, Owner


class SimulatedQueue(StoresMessages):
    """A producer of a queue whose messages are stored for watchers that fall behind.

    Args:
        is_unordered: Whether each message is its own lane, as in a queue without order.
    """

    def __init__(
        self,
        broker: Broker,
        owner: Owner,
        cohort: Callable[[], Cohort],
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
