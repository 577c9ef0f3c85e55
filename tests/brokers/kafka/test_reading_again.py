"""Reading a partition again from any position, while the stream continues."""

from __future__ import annotations

import gc
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest
from aiokafka import AIOKafkaProducer, TopicPartition

from producers.kafka import KafkaMessage, KafkaSharedStreamProducer
from producers.kafka.settings import KafkaSettings
from tests.brokers.kafka.driving import driving, producer_on
from tests.services.brokers.kafka import KafkaServer
from triggerer.errors import BrokerRefused, BrokerUnavailable


class Reading:
    """Reads partition 0 of a topic from one position, message by message."""

    def __init__(
        self, producer: KafkaSharedStreamProducer, topic: str, position: list[object]
    ) -> None:
        messages = producer.read_lane_reporting((topic, 0), position, self._mark_passed)
        assert isinstance(messages, AsyncGenerator)
        self.messages: AsyncGenerator[tuple[KafkaMessage, KafkaMessage], None] = messages
        self._passed: int | None = None
        self._has_passed = anyio.Event()

    def _mark_passed(self, position: list[Any]) -> None:
        _, self._passed = position
        self._has_passed.set()
        self._has_passed = anyio.Event()

    async def take(self, count: int) -> list[KafkaMessage]:
        with anyio.fail_after(30):
            return [(await anext(self.messages))[0] for _ in range(count)]

    async def passed(self, offset: int) -> None:
        """Wait until `read_lane` reports that it has passed this offset. Fail if it yields a message before."""
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._read_none)
                while self._passed != offset:
                    await self._has_passed.wait()
                tasks.cancel_scope.cancel()

    async def _read_none(self) -> None:
        raise AssertionError(await anext(self.messages))

    async def text(self, count: int) -> str:
        return b"".join(message.value or b"" for message in await self.take(count)).decode()


@asynccontextmanager
async def read(
    producer: KafkaSharedStreamProducer, topic: str, position: list[object]
) -> AsyncIterator[Reading]:
    reading = Reading(producer, topic, position)
    async with aclosing(reading.messages):
        yield reading


async def read_text(
    producer: KafkaSharedStreamProducer, topic: str, position: list[object], count: int
) -> str:
    async with read(producer, topic, position) as reading:
        return await reading.text(count)


async def earliest(producer: KafkaSharedStreamProducer, topic: str) -> list[object]:
    return (await producer.find_positions(None))[TopicPartition(topic, 0)]


async def test_what_retention_has_deleted_is_counted_and_the_rest_is_read(
    kafka_server: KafkaServer,
    topic: str,
    producer: KafkaSharedStreamProducer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    position = await earliest(producer, topic)
    await anyio.to_thread.run_sync(lambda: kafka_server.delete_records(topic, 0, before=4))
    assert await read_text(producer, topic, position, 6) == "efghij"
    assert any("up to 4 messages were deleted before they were read" in m for m in caplog.messages)


async def test_retention_that_overtakes_a_reader_is_counted_too(
    kafka_server: KafkaServer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    producer = producer_on(kafka_server.bootstrap_servers, topic, topic, max_batch=1)
    async with read(producer, topic, await earliest(producer, topic)) as reading:
        assert await reading.text(10) == "abcdefghij"
        kafka_server.produce(topic, [*"klm"])
        await anyio.to_thread.run_sync(lambda: kafka_server.delete_records(topic, 0, before=13))
        kafka_server.produce(topic, ["n"])
        # The client may still deliver deleted messages that it had fetched before.
        assert (await reading.text(1)) in "kn"
    assert await read_text(producer, topic, [None, 10], 1) == "n"
    assert any("up to 3 messages were deleted" in message for message in caplog.messages)


async def test_a_position_of_a_recreated_topics_predecessor_is_its_beginning(
    kafka_server: KafkaServer,
    topic: str,
    producer: KafkaSharedStreamProducer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic_id, _ = await earliest(producer, topic)
    kafka_server.delete_topic(topic)
    kafka_server.create_topic(topic)
    kafka_server.produce(topic, [*"xyz"])
    assert await read_text(producer, topic, [topic_id, 7], 3) == "xyz"
    assert any("position 7 belongs to its predecessor" in message for message in caplog.messages)


async def test_a_topic_recreated_under_a_reader_ends_it(
    kafka_server: KafkaServer, topic: str, producer: KafkaSharedStreamProducer
) -> None:
    async with read(producer, topic, await earliest(producer, topic)) as reading:
        assert await reading.text(10) == "abcdefghij"
        kafka_server.delete_topic(topic)
        kafka_server.create_topic(topic)
        kafka_server.produce(topic, [*"0123456789xyz"])
        with pytest.raises((BrokerUnavailable, BrokerRefused)):
            await reading.text(1)


async def test_a_log_cut_under_a_reader_ends_it_and_what_was_written_since_is_read(
    kafka_server: KafkaServer, topic: str, producer: KafkaSharedStreamProducer
) -> None:
    async with driving(producer) as driver:
        await driver.settled(10)
        async with read(producer, topic, await earliest(producer, topic)) as reading:
            assert await reading.text(10) == "abcdefghij"
            await producer.pause()
            await anyio.to_thread.run_sync(lambda: kafka_server.cut_log(topic, at=5))
            kafka_server.produce(topic, [*"tuvwxyz"])
            with pytest.raises(BrokerUnavailable):
                await reading.text(1)
        # The stream read this message before the cut. Another message has its offset now.
        position = producer.get_position(driver.seen[9])
        for offset in (2, 7, 10):
            async with read(producer, topic, [position[0], offset]) as reading:
                # Reading must fail until the paused stream has noticed the cut. Otherwise new messages would get the
                # keys of lost messages.
                with pytest.raises(BrokerUnavailable, match="was cut before"):
                    await reading.text(1)
        await producer.resume()
        await driver.until(lambda: "z" in driver.values)
        async with read(producer, topic, position) as reading:
            again = await reading.take(7)
        assert [message.offset for message in again] == [*range(5, 12)]
        keys = [producer.get_idempotency_key(message) for message in again]
        assert keys == driver.keys[10:]
        # A position from after the cut is not set back to the cut.
        position = producer.get_position(again[3])
        assert await read_text(producer, topic, position, 4) == "wxyz"


async def test_gaps_that_transactions_leave_are_passed(
    kafka_server: KafkaServer, topic: str, producer: KafkaSharedStreamProducer
) -> None:
    async with AIOKafkaProducer(
        bootstrap_servers=kafka_server.bootstrap_servers, transactional_id=topic
    ) as writer:
        for value, is_kept in ((b"k", True), (b"lost", False), (b"l", True)):
            await writer.begin_transaction()
            await writer.send_and_wait(topic, value)
            await (writer.commit_transaction() if is_kept else writer.abort_transaction())
    for offset in (10, 11, 12, 13, 14):
        expected = "kl" if offset == 10 else "l"
        assert await read_text(producer, topic, [None, offset], len(expected)) == expected
    # After the last message, the log contains the marker of a committed transaction.
    async with read(producer, topic, [None, 14]) as reading:
        assert await reading.text(1) == "l"
        await reading.passed(16)


async def test_where_all_was_deleted_nothing_is_left_to_be_read(
    kafka_server: KafkaServer, topic: str, producer: KafkaSharedStreamProducer
) -> None:
    position = await earliest(producer, topic)
    await anyio.to_thread.run_sync(lambda: kafka_server.delete_records(topic, 0, before=10))
    async with read(producer, topic, position) as reading:
        await reading.passed(10)


async def test_positions_are_found_by_the_messages_times(
    topic: str, producer: KafkaSharedStreamProducer
) -> None:
    async with driving(producer) as driver:
        await driver.settled(10)
        times = [datetime.fromtimestamp(message.timestamp / 1000, UTC) for message in driver.seen]
    place = TopicPartition(topic, 0)
    found = (await producer.find_positions(times[5]))[place]
    # The expected offset is the first with this millisecond, because several messages may have it.
    assert found[1] == next(n for n, time in enumerate(times) if time >= times[5])


async def test_a_time_before_all_times_is_that_of_the_earliest_message(
    topic: str, producer: KafkaSharedStreamProducer
) -> None:
    place = TopicPartition(topic, 0)
    for start in (datetime(1969, 12, 31, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)):
        assert (await producer.find_positions(start))[place] == await earliest(producer, topic)


async def test_a_partition_ends_behind_a_message_whose_time_is_beyond_all_times(
    kafka_server: KafkaServer,
) -> None:
    """The writer sent microseconds where Kafka expects milliseconds."""
    topic = f"t-{uuid.uuid4().hex[:10]}"
    kafka_server.create_topic(topic, message_timestamp_after_max_ms=str(2**63 - 1))
    async with AIOKafkaProducer(bootstrap_servers=kafka_server.bootstrap_servers) as writer:
        await writer.send_and_wait(topic, b"a", timestamp_ms=time.time_ns() // 1_000)
    kafka_server.produce(topic, [*"bc"])
    producer = producer_on(kafka_server.bootstrap_servers, topic, topic)
    ends = await producer.find_positions(datetime(9999, 1, 1, tzinfo=UTC))
    assert ends[TopicPartition(topic, 0)][1] == 3
    async with read(producer, topic, [None, 0]) as reading:
        times = [message.published_at for message in await reading.take(2)]
    assert times[0] is None
    assert times[1] is not None


async def test_nothing_is_asked_before_it_is_known_of_whom(
    topic: str, producer: KafkaSharedStreamProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `read_lane` opens a new client. A request that the client sends before it knows the partition's leader fails. With
    # this setting, the client would repeat such a request only after an hour.
    arguments = KafkaSettings.reading_arguments
    monkeypatch.setattr(
        KafkaSettings,
        "reading_arguments",
        lambda settings: arguments(settings) | {"retry_backoff_ms": 3_600_000},
    )
    with anyio.fail_after(30):
        assert await read_text(producer, topic, await earliest(producer, topic), 10) == "abcdefghij"


async def test_a_message_that_was_kept_is_what_it_was(
    kafka_server: KafkaServer, topic: str, producer: KafkaSharedStreamProducer
) -> None:
    async with AIOKafkaProducer(bootstrap_servers=kafka_server.bootstrap_servers) as writer:
        headers = [("a", b"\x00\n"), ("a", b""), ("b", b"1")]
        await writer.send_and_wait(topic, None, key=b"tombstone", headers=headers)
        await writer.send_and_wait(topic, b"\n\n{}", key=b"")
        await writer.send_and_wait(topic, b"", headers=[("none", None)])
    async with read(producer, topic, [None, 10]) as reading:
        for message in await reading.take(3):
            loaded = producer.load_event(producer.dump_event(message))
            for name in ("topic", "partition", "offset", "timestamp", "key", "value", "headers"):
                assert getattr(loaded, name) == getattr(message, name)
            key = producer.get_idempotency_key
            assert key(loaded) == key(message)


# A client of aiokafka 0.14 whose start is cancelled may leave a connection open. This test collects the client and
# ignores its warnings, so that they fail no later test.
@pytest.mark.filterwarnings(
    "ignore:(?i)unclosed:ResourceWarning", "ignore:loop is closed:ResourceWarning"
)
async def test_a_reader_that_is_cancelled_leaves_no_task_behind(
    topic: str, producer: KafkaSharedStreamProducer
) -> None:
    position = await earliest(producer, topic)
    for seconds in (0, 0.005, 0.02, 0.1):
        with anyio.move_on_after(seconds):
            await read_text(producer, topic, position, 11)
    gc.collect()
