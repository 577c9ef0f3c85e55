"""One partition pauses while the other partitions are read, on a real Apache Kafka."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Hashable
from typing import Any, ClassVar

import anyio
import pytest
from aiokafka import TopicPartition

from producers.kafka import KafkaMessage, KafkaSharedStreamProducer
from tests.brokers.kafka.driving import TIMEOUT_S, Driver, driving, producer_on
from tests.services.brokers.kafka import KafkaServer
from triggerer.abc import BaseEventTrigger, SharedStreamProducer, TriggerEvent
from triggerer.domain.events import EventSource, HasPayload, PendingEvent, WatcherRef
from triggerer.streams import Manager, RuntimeContext, RuntimeSettings, TriggerSpec

PARTITIONS = 3
BOUND = 10
COUNT = 60


@pytest.fixture
def topic(kafka_server: KafkaServer) -> str:
    name = f"p-{uuid.uuid4().hex[:10]}"
    kafka_server.create_topic(name, PARTITIONS)
    return name


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110  (a broker sends no notice)
            await anyio.sleep(0.05)


class Watching(BaseEventTrigger):
    """Derives an event from each message."""

    producer: ClassVar[KafkaSharedStreamProducer]
    seen: ClassVar[dict[int, list[str]]]

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "Watching", {}

    def shared_stream_key(self) -> Hashable:
        return "kafka"

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return cls.producer

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[KafkaMessage]
    ) -> AsyncIterator[TriggerEvent]:
        async for message in shared_stream:
            partition = message.partition
            self.seen.setdefault(partition, []).append((message.value or b"").decode())
            yield TriggerEvent({"partition": partition})


class LagsForOnePartition:
    """A store that confirms events at once. Until `catch_up`, it leaves events of partition 0 unconfirmed."""

    def __init__(self) -> None:
        self.waiting: list[PendingEvent] = []
        self.lags = True

    is_full = False

    async def wait_for_room(self) -> None: ...

    def submit_nowait(
        self,
        event: PendingEvent,
        yielded: HasPayload,
        source: EventSource,
        key: str | None,
        ordinal: int,
    ) -> None:
        if self.lags and yielded.payload["partition"] == 0:
            self.waiting.append(event)
        else:
            event.complete(None)

    def catch_up(self) -> None:
        self.lags = False
        waiting, self.waiting = self.waiting, []
        for event in waiting:
            event.complete(None)


async def test_a_partition_at_its_bound_pauses_alone_and_its_member_stays_in_the_group(
    kafka_server: KafkaServer, topic: str
) -> None:
    values = {part: [f"{part}-{n}" for n in range(COUNT)] for part in range(PARTITIONS)}
    for partition, messages in values.items():
        kafka_server.produce(topic, messages, partition=partition)
    Watching.producer = producer = producer_on(kafka_server.bootstrap_servers, topic, topic)
    Watching.seen = {}
    store = LagsForOnePartition()
    settings = RuntimeSettings(max_outstanding_per_lane=BOUND)
    source = EventSource((WatcherRef(1, 1),), None)
    async with Manager(RuntimeContext(store, settings=settings, restarts=False)) as manager:
        (hosted,) = manager.add([TriggerSpec("one", Watching, {}, source)])
        await until(lambda: all(len(Watching.seen.get(part, ())) == COUNT for part in (1, 2)))
        lane = producer.lanes[TopicPartition(topic, 0)]
        # This is longer than the session timeout. So heartbeats must go on while partition 0 is paused.
        await anyio.sleep(7.0)
        assert producer.lanes[TopicPartition(topic, 0)] is lane
        assert kafka_server.group_members(topic) == 1
        assert len(Watching.seen[0]) == len(store.waiting) == BOUND
        kafka_server.produce(topic, ["later"], partition=1)
        await until(lambda: "later" in Watching.seen[1])
        store.catch_up()
        await until(lambda: kafka_server.committed_offsets(topic, topic).get(0, 0) == COUNT)
        assert Watching.seen[0] == values[0]
        assert Watching.seen[2] == values[2]
        assert hosted.error is None


async def test_a_partition_that_went_and_came_back_is_not_left_paused(
    kafka_server: KafkaServer, topic: str
) -> None:
    servers = kafka_server.bootstrap_servers

    def owned(driver: Driver) -> set[TopicPartition]:
        return set(driver.producer.lanes)

    async with driving(producer_on(servers, topic, topic)) as one:
        await until(lambda: len(owned(one)) == PARTITIONS)
        for partition in owned(one):
            await one.producer.pause_lane(partition)
        kafka_server.produce(topic, ["a"], partition=0)
        await anyio.sleep(1.0)  # a partition that is not paused delivers the message much sooner
        assert one.seen == []
        async with driving(producer_on(servers, topic, topic)) as two:
            await until(lambda: bool(owned(two)) and len(owned(one) | owned(two)) == PARTITIONS)
            # After the rebalance, partition 0 is not paused any longer, whichever member has it.
            await until(lambda: len(one.seen) + len(two.seen) == 1)
        await until(lambda: len(owned(one)) == PARTITIONS)
        for partition in range(PARTITIONS):
            kafka_server.produce(topic, [f"b{partition}"], partition=partition)
        await until(lambda: {f"b{number}" for number in range(PARTITIONS)} <= set(one.values))
