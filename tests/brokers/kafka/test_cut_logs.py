"""A log has lost its end (an unclean leader election), and uses the lost offsets again for other messages."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Callable, Hashable
from datetime import UTC, datetime
from typing import Any, ClassVar

import anyio
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from producers.kafka import KafkaMessage, KafkaSharedStreamProducer
from tests.brokers.kafka.driving import TIMEOUT_S, driving, producer_on, read
from tests.services.brokers.kafka import KafkaServer
from tests.unit.streams.scene import Sink, context
from triggerer.abc import BaseEventTrigger, SharedStreamProducer, TriggerEvent
from triggerer.domain.events import EventSource, Fence, WatcherRef
from triggerer.domain.watchers.lane_positions import LanePosition, encode_lane
from triggerer.streams import Manager, TriggerSpec


async def test_what_is_written_at_offsets_that_were_read_before_is_read_and_nothing_else(
    kafka_server: KafkaServer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with driving(producer_on(kafka_server.bootstrap_servers, topic, topic)) as driver:
        await driver.settled(10)
        await anyio.to_thread.run_sync(lambda: kafka_server.cut_log(topic, at=5))
        # Write more messages than were lost, so that the stream's old position is within the log again.
        kafka_server.produce(topic, [*"tuvwxyz"])
        await driver.until(lambda: "z" in driver.values)
        await driver.until(lambda: kafka_server.committed_offsets(topic, topic) == {0: 12})
    assert driver.values == [*"abcdefghij", *"tuvwxyz"]
    assert len(set(driver.keys)) == 17, "a new message has the key of one that was lost"
    assert any("the log was cut at 5" in text for text in caplog.messages)


async def test_a_log_that_is_cut_while_nobody_reads_it_goes_on_at_the_cut(
    kafka_server: KafkaServer, topic: str
) -> None:
    servers = kafka_server.bootstrap_servers
    first = await read(kafka_server, topic, 10)
    await anyio.to_thread.run_sync(lambda: kafka_server.cut_log(topic, at=5))
    kafka_server.produce(topic, [*"uv"])
    async with driving(producer_on(servers, topic, topic)) as second:
        await second.settled(2)
        await second.until(lambda: kafka_server.committed_offsets(topic, topic) == {0: 7})
    assert second.values == [*"uv"]
    kafka_server.produce(topic, [*"wxyz"])
    third = await read(kafka_server, topic, 4)
    assert third.values == [*"wxyz"]
    assert len({*first.keys, *second.keys, *third.keys}) == 16


async def test_messages_that_are_delivered_again_after_a_cut_keep_their_keys(
    kafka_server: KafkaServer, topic: str
) -> None:
    servers = kafka_server.bootstrap_servers
    async with driving(producer_on(servers, topic, topic), lambda _: None) as first:
        await first.count(10)
        keys = first.keys
    await anyio.to_thread.run_sync(lambda: kafka_server.cut_log(topic, at=5))
    kafka_server.produce(topic, [*"xyz"])
    second = await read(kafka_server, topic, 8)
    assert second.values == [*"abcde", *"xyz"]
    assert second.keys[:5] == keys[:5]


async def test_a_position_beyond_the_end_of_which_nothing_more_is_known_goes_to_the_earliest_message(
    kafka_server: KafkaServer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    servers, place = kafka_server.bootstrap_servers, TopicPartition(topic, 0)
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, group_id=topic, enable_auto_commit=False)
    await consumer.start()
    consumer.assign([place])
    # Commit the offset without our metadata, as an older release or another program would.
    await consumer.commit({place: (12, "")})
    await consumer.stop()
    driver = await read(kafka_server, topic, 10)
    assert driver.values == [*"abcdefghij"]
    assert any("the log ends at 10, so it was cut" in text for text in caplog.messages)


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110  (a broker sends no notice)
            await anyio.sleep(0.05)


class Watching(BaseEventTrigger):
    """Derives an event from each message. The watcher "sick" raises at "c" while `is_sick` is true."""

    producer: ClassVar[KafkaSharedStreamProducer]
    is_sick: ClassVar[bool]

    def __init__(self, name: str) -> None:
        self.name = name

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "Watching", {"name": self.name}

    def shared_stream_key(self) -> Hashable:
        return "kafka"

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return cls.producer

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[KafkaMessage]
    ) -> AsyncIterator[TriggerEvent]:
        async for message in shared_stream:
            value = (message.value or b"").decode()
            if value == "c" and self.name == "sick" and Watching.is_sick:
                raise RuntimeError("cannot take it")
            yield TriggerEvent(value)


# A client of aiokafka 0.14 whose start is cancelled may leave a connection open. This test collects the client and
# ignores its warnings, so that they fail no later test.
@pytest.mark.filterwarnings(
    "ignore:(?i)unclosed:ResourceWarning", "ignore:loop is closed:ResourceWarning"
)
@pytest.mark.rule("18: a log whose end was lost is read on from the place where it was cut")
async def test_a_watcher_that_is_behind_when_a_log_is_cut_misses_nothing_that_is_written_since(
    kafka_server: KafkaServer, topic: str
) -> None:
    def is_committed(offset: int) -> bool:
        return kafka_server.committed_offsets(topic, topic) == {0: offset}

    def specs(*rows: LanePosition) -> list[TriggerSpec]:
        return [
            TriggerSpec(
                name, lambda name=name: Watching(name), {"name": name},
                EventSource((WatcherRef(number, 0),), Fence("stream", "me", 1)), rows if number == 1 else (),
            )
            for number, name in enumerate(("sick", "well"), 1)
        ]  # fmt: skip

    Watching.producer = producer_on(kafka_server.bootstrap_servers, topic, topic)
    Watching.is_sick = True
    sink, place = Sink(), TopicPartition(topic, 0)
    since = [f"{number}" for number in range(5, 40)]
    # With this limit, message "c" is not parked, although the sick watcher fails at it again and again.
    async with Manager(context(sink, max_deliveries=10**6)) as manager:
        manager.add(specs())
        await until(lambda: is_committed(10))
        # The sick watcher is behind now. The runtime keeps messages from here on in memory for it.
        kafka_server.produce(topic, [*"klmnopqrst"])
        await until(lambda: is_committed(20))
        await anyio.to_thread.run_sync(lambda: kafka_server.cut_log(topic, at=5))
        kafka_server.produce(topic, since)
        await until(lambda: since[-1] in sink.derived(2))
        Watching.is_sick = False
        await until(lambda: since[-1] in sink.derived(1))
        await until(lambda: is_committed(40))
    assert sink.derived(1) == [*"abcde", *since]
    assert sink.derived(2) == [*"abcdefghijklmnopqrst", *since]

    # Restart the runtime. The sick watcher's stored position is offset 20, from before the cut. Its catch-up starts
    # before the partition is assigned, and must go back to offset 5, where the log was cut.
    Watching.producer = producer_on(kafka_server.bootstrap_servers, topic, topic)
    topic_id, _ = (await Watching.producer.find_positions(None))[place]
    row = LanePosition(1, encode_lane(place) or "", [topic_id, 20], datetime.now(UTC))
    async with Manager(context(sink)) as manager:
        manager.add(specs(row))
        await until(lambda: bool(sink.positions.get((1, row.lane))))
        kafka_server.produce(topic, ["end"])
        await until(lambda: "end" in sink.derived(1) and is_committed(41))
    assert sink.derived(1) == [*"abcde", *since, "end"]
    gc.collect()
