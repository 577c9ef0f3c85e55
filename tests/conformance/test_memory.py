"""Runs the conformance suite on the in-memory broker, which has every feature and passes every case."""

from __future__ import annotations

from collections.abc import Sequence

from triggerer.abc import SharedStreamProducer
from triggerer.testing import Feature, InMemoryBroker, InMemoryQueueProducer, ProducerConformance


class TestInMemoryBroker(ProducerConformance):
    features = frozenset(Feature)
    quiet_s = 0.02
    lock_s = 0.1

    async def setup(self) -> None:
        self.broker = InMemoryBroker(max_deliveries=self.max_deliveries, lock_s=self.lock_s)

    async def publish(self, values: Sequence[str], lane: int = 0) -> None:
        self.broker.publish(*values, lane=lane)

    async def publish_unordered(self, values: Sequence[str]) -> None:
        self.broker.publish_unordered(*values)

    async def new_producer(self) -> SharedStreamProducer:
        return self.broker.producer()

    async def committed(self, lane: int = 0) -> int:
        return self.broker.committed(lane)

    async def dead_letters(self) -> list[str]:
        return self.broker.dead_letters

    async def recreate(self) -> None:
        await self.setup()

    async def seek(self, position: int, lane: int = 0) -> None:
        self.broker.seek(position, lane)


class TestInMemoryQueue(TestInMemoryBroker):
    """The in-memory broker as a queue: consumed messages cannot be read again."""

    features = frozenset(Feature) - {Feature.LOG}

    async def new_producer(self) -> SharedStreamProducer:
        return InMemoryQueueProducer(self.broker)
