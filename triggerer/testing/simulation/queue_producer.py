"""The producer of a queue whose messages can be stored (contract, rule 18)."""

from __future__ import annotations

import re
from typing import Any

from triggerer.testing.simulation.producer import SimulatedProducer


class SimulatedQueue(SimulatedProducer):
    """A message is stored as its key: the broker's model keeps for ever what was published."""

    def dump_event(self, event: Any) -> bytes:
        return self._broker.message_of(event).key.encode()

    def load_event(self, data: bytes) -> Any:
        topic, lane, offset = data.decode().rsplit("/", 2)
        assert topic == self._broker.topic
        return self._broker.lanes[int(lane)].messages[int(offset)].event

    async def dead_letter(self, event: Any, reason: str) -> None:
        message = self._broker.message_of(event)
        await self._simulate_io()
        watcher = re.search(r"watcher (\d+)", reason)
        assert watcher is not None
        self._broker.checker.lagging.on_handed_over(int(watcher[1]), message)
        await self._simulate_io()
