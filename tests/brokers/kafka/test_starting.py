"""Where a stream begins: at a time, at offsets, in the topics of a pattern, or after its position has expired."""

import logging
import re
import uuid
from datetime import UTC, datetime

import pytest
from aiokafka import AIOKafkaProducer

from tests.brokers.kafka.driving import driving, producer_on
from tests.brokers.kafka.test_positions import wait_for_commit
from tests.services.brokers.kafka import KafkaServer
from triggerer.errors import BrokerRefused

BEGIN = datetime(2026, 11, 22, 6, tzinfo=UTC)


@pytest.fixture
def topic(kafka_server: KafkaServer) -> str:
    name = f"t-{uuid.uuid4().hex[:10]}"
    kafka_server.create_topic(name)
    return name


async def write_each_minute(server: KafkaServer, topic: str, values: str) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=server.bootstrap_servers)
    await producer.start()
    try:
        for minute, value in enumerate(values):
            at = int(BEGIN.timestamp() * 1000) + minute * 60_000
            await producer.send_and_wait(topic, value.encode(), timestamp_ms=at, partition=0)
    finally:
        await producer.stop()


async def test_a_stream_starts_at_a_time_where_nothing_is_committed(
    kafka_server: KafkaServer, topic: str
) -> None:
    servers = kafka_server.bootstrap_servers
    await write_each_minute(kafka_server, topic, "abcde")
    async with driving(producer_on(servers, topic, topic, start="2026-11-22T06:02:30Z")) as driver:
        await driver.count(2)
        assert driver.values == ["d", "e"]
        await wait_for_commit(kafka_server, topic, 5)
    # From now on, the committed position decides, not `start`.
    kafka_server.produce(topic, ["f"])
    async with driving(producer_on(servers, topic, topic, start="2026-11-22T06:00Z")) as driver:
        await driver.count(1)
    assert driver.values == ["f"]


async def test_a_time_after_the_last_message_is_its_end(
    kafka_server: KafkaServer, topic: str
) -> None:
    await write_each_minute(kafka_server, topic, "ab")
    later = producer_on(kafka_server.bootstrap_servers, topic, topic, start="2026-11-22T07:00Z")
    async with driving(later) as driver:
        await wait_for_commit(kafka_server, topic, 2)
        kafka_server.produce(topic, ["new"])
        await driver.count(1)
    assert driver.values == ["new"]


@pytest.mark.parametrize(("offset", "values"), [(3, "de"), (99, "z"), (0, "abcde")])
async def test_a_stream_starts_at_offsets_and_at_the_end_where_there_is_no_such(
    kafka_server: KafkaServer, topic: str, offset: int, values: str
) -> None:
    kafka_server.produce(topic, [*"abcde"])
    start = {topic: {"0": offset}}
    async with driving(
        producer_on(kafka_server.bootstrap_servers, topic, topic, start=start)
    ) as driver:
        if offset > 5:
            await wait_for_commit(kafka_server, topic, 5)
            kafka_server.produce(topic, ["z"])
        await driver.count(len(values))
    assert driver.values == [*values]


async def _let_expire(kafka: KafkaServer, topic: str) -> None:
    """Read one message of five, and have the next two deleted."""
    kafka.produce(topic, ["a"])
    async with driving(producer_on(kafka.bootstrap_servers, topic, topic)) as driver:
        await driver.count(1)
        await wait_for_commit(kafka, topic, 1)
    kafka.produce(topic, [*"bcde"])
    kafka.delete_records(topic, 0, before=3)


@pytest.mark.rule("the committed position has expired, and reading silently goes on somewhere else")
@pytest.mark.parametrize(("policy", "values"), [("earliest", "de"), ("latest", "z")])
async def test_an_expired_position_goes_on_where_the_policy_says_and_says_so(
    kafka_server: KafkaServer,
    topic: str,
    policy: str,
    values: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)
    servers = kafka_server.bootstrap_servers
    await _let_expire(kafka_server, topic)
    async with driving(producer_on(servers, topic, topic, expired_offset=policy)) as driver:
        if policy == "latest":
            await wait_for_commit(kafka_server, topic, 5)
            kafka_server.produce(topic, ["z"])
        await driver.count(len(values))
    assert driver.values == [*values]
    assert "2 messages were deleted before they were read (retention)" in caplog.text


async def test_an_expired_position_fails_the_stream_until_somebody_has_decided(
    kafka_server: KafkaServer, topic: str
) -> None:
    servers = kafka_server.bootstrap_servers
    await _let_expire(kafka_server, topic)
    async with driving(producer_on(servers, topic, topic, expired_offset="fail")) as driver:
        error = await driver.until_failed()
    assert isinstance(error, BrokerRefused)
    assert re.search(r"2 messages were deleted .*expired_offset", str(error))
    async with driving(producer_on(servers, topic, topic)) as driver:
        await driver.count(2)
    assert driver.values == ["d", "e"]


async def test_a_pattern_finds_topics_that_come_later_and_reads_them_from_their_beginning(
    kafka_server: KafkaServer,
) -> None:
    name = f"p-{uuid.uuid4().hex[:10]}"
    servers = kafka_server.bootstrap_servers
    kafka_server.create_topic(f"{name}-1")
    kafka_server.create_topic(f"{name}-1.dead-letter")
    kafka_server.produce(f"{name}-1", ["old"])
    kafka_server.produce(f"{name}-1.dead-letter", ["dead"])
    async with driving(producer_on(servers, f"^{name}-", name, start="latest")) as driver:
        await wait_for_commit(kafka_server, f"{name}-1", 1, group=name)
        kafka_server.create_topic(f"{name}-2")
        kafka_server.produce(f"{name}-2", ["of a new topic"])
        kafka_server.produce(f"{name}-1", ["new"])
        await driver.count(2)
        positions = await driver.producer.find_positions(None)
    assert sorted(driver.values) == ["new", "of a new topic"]
    assert {place.topic for place in positions} == {f"{name}-1", f"{name}-2"}


async def test_a_topic_that_goes_does_not_end_the_stream_of_a_pattern(
    kafka_server: KafkaServer,
) -> None:
    name = f"p-{uuid.uuid4().hex[:10]}"
    for number in (1, 2):
        kafka_server.create_topic(f"{name}-{number}")
        kafka_server.produce(f"{name}-{number}", [f"first of {number}"])
    async with driving(producer_on(kafka_server.bootstrap_servers, f"^{name}-", name)) as driver:
        await driver.count(2)
        kafka_server.delete_topic(f"{name}-1")
        for number in range(5):
            kafka_server.produce(f"{name}-2", [f"number {number}"])
        await driver.count(7)
    assert driver.values[-1] == "number 4"
