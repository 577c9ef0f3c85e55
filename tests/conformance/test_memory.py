"""Runs the conformance suite on the in-memory broker, which has every feature and passes every case."""

from __future__ import annotations

import time
from collections.abc import Sequence

import anyio

from triggerer.abc import AdvanceItem, AdvanceOutcome, SharedStreamProducer
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


async def test_a_producer_that_lost_a_lock_reads_the_lane_again_once_the_lane_is_free() -> None:
    broker = InMemoryBroker(lock_s=0.05)
    broker.publish("a", "b", "c")
    first, second = broker.producer(), broker.producer()
    acked = AdvanceOutcome(acked=1, failed=0, rejected=0)
    stream, other = first.open_stream(), second.open_stream()
    _, late = await anext(stream)
    # Block the event loop for longer than a lock lasts, so that the first producer cannot renew its lock.
    time.sleep(0.06)
    for value in ("a", "b"):
        event, message = await anext(other)
        assert event == value
        await second.advance([AdvanceItem(message, acked)])
    await second.aclose()
    with anyio.fail_after(5):
        event, message = await anext(stream)
    assert event == "c"
    await first.advance([AdvanceItem(late, acked)])
    assert broker.committed() == 2, "a message from before the loss moved the position back"
    await first.advance([AdvanceItem(message, acked)])
    assert broker.committed() == 3
    await first.aclose()
