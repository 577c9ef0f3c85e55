"""Runs the conformance suite on the Kafka producer, with a real Apache Kafka."""

from __future__ import annotations

import asyncio
import gc
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from producers.kafka import KafkaMessage
from tests.brokers.kafka.driving import producer_on
from tests.services.brokers.kafka import KafkaServer
from triggerer.abc import SharedStreamProducer
from triggerer.testing import Feature, ProducerConformance


class TestKafka(ProducerConformance):
    # Only one member of the group reads a partition, so messages have no locks. Kafka is a log, and no queue.
    features = frozenset(Feature) - {Feature.LOCK_RENEWAL, Feature.QUEUE}
    patience_s = 30.0
    quiet_s = 0.3
    # Cancel only at the waits with these numbers. For each cancellation, a consumer must join and leave the group, and
    # this takes long.
    cancel_at = (1, 2, 4, 8, 16, 32, 64)

    @pytest.fixture(autouse=True)
    def _broker(self, kafka_server: KafkaServer) -> None:
        self.server = kafka_server

    async def setup(self) -> None:
        self.topic = f"c-{uuid.uuid4().hex[:10]}"
        await asyncio.to_thread(self.server.create_topic, self.topic, 2)
        await asyncio.to_thread(self.server.create_topic, f"{self.topic}.dead-letter")

    async def teardown(self) -> None:
        # If the start of an aiokafka client (0.14) is cancelled, a connection may stay open. The garbage collector then
        # reports a `ResourceWarning`. Run the collector here, so that this warning does not fail the next test.
        gc.collect()

    @pytest.mark.rule("5: a message that one subscriber rejects and another fails counts as failed")
    def test_a_message_that_is_rejected_and_failed_comes_again(self) -> None:
        super().test_a_message_that_is_rejected_and_failed_comes_again()

    @pytest.mark.rule(
        "12: the position never passes a failed message: not in its batch, nor later, nor after a restart"
    )
    def test_a_failed_message_is_not_passed_by_a_later_batch_nor_after_a_restart(self) -> None:
        super().test_a_failed_message_is_not_passed_by_a_later_batch_nor_after_a_restart()

    @pytest.mark.rule(
        "nobody is subscribed at a broadcast, and the broker is advanced nevertheless"
    )
    def test_a_message_without_subscribers_is_not_committed(self) -> None:
        super().test_a_message_without_subscribers_is_not_committed()

    @pytest.mark.rule("S10: a rejected message comes once, a failed one until it is parked")
    def test_a_rejected_message_does_not_come_again(self) -> None:
        super().test_a_rejected_message_does_not_come_again()

    @pytest.mark.filterwarnings("ignore:(?i)unclosed:ResourceWarning")
    def test_a_stream_that_is_cancelled_anywhere_loses_nothing(self) -> None:
        super().test_a_stream_that_is_cancelled_anywhere_loses_nothing()

    async def publish(self, values: Sequence[str], lane: int = 0) -> None:
        await asyncio.to_thread(self.server.produce, self.topic, values, partition=lane)

    async def new_producer(self) -> SharedStreamProducer:
        return producer_on(
            self.server.bootstrap_servers,
            self.topic,
            self.topic,
            max_deliveries=self.max_deliveries,
        )

    async def committed(self, lane: int = 0) -> int:
        offsets = await asyncio.to_thread(self.server.committed_offsets, self.topic, self.topic)
        return offsets.get(lane, 0)

    def value_of(self, event: Any) -> str | None:
        assert isinstance(event, KafkaMessage)
        return (event.value or b"").decode()

    async def dead_letters(self) -> list[str]:
        topic = f"{self.topic}.dead-letter"
        (count,) = (await asyncio.to_thread(self.server.end_offsets, topic)).values()
        if not count:
            return []
        async with AIOKafkaConsumer(
            topic, bootstrap_servers=self.server.bootstrap_servers, auto_offset_reset="earliest"
        ) as consumer:
            return [(await consumer.getone()).value.decode() for _ in range(count)]

    async def recreate(self) -> None:
        await asyncio.to_thread(self.server.delete_topic, self.topic)
        await asyncio.to_thread(self.server.create_topic, self.topic, 2)

    async def seek(self, position: int, lane: int = 0) -> None:
        place = TopicPartition(self.topic, lane)
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.server.bootstrap_servers,
            group_id=self.topic,
            enable_auto_commit=False,
        )
        await consumer.start()
        try:
            consumer.assign([place])
            await consumer.commit({place: position})
        finally:
            await consumer.stop()
