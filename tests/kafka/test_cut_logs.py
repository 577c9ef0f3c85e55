"""A log that lost its end (an unclean leader election), and whose offsets are used again for other messages."""

import anyio
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.kafka.driving import driving, producer_on, read
from tests.services.kafka import KafkaServer


async def test_what_is_written_at_offsets_that_were_read_before_is_read_and_nothing_else(
    kafka_server: KafkaServer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with driving(producer_on(kafka_server.bootstrap_servers, topic, topic)) as driver:
        await driver.settled(10)
        await anyio.to_thread.run_sync(lambda: kafka_server.cut_log(topic, at=5))
        # More than were lost: the position that the stream had is within the log.
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
    # As a release before wrote it, or another program.
    await consumer.commit({place: (12, "")})
    await consumer.stop()
    driver = await read(kafka_server, topic, 10)
    assert driver.values == [*"abcdefghij"]
    assert any("the log ends at 10, so it was cut" in text for text in caplog.messages)
