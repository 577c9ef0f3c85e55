"""Brokers that are unreachable, refuse a request, or differ from the configuration."""

import socket
import time
import uuid

import anyio
import pytest

from producers.kafka import check_topics
from producers.kafka.lag import measure_lag
from producers.kafka.settings import KafkaSettings
from tests.brokers.kafka.driving import ACKED, driving, producer_on
from tests.services.availability import service
from tests.services.brokers.kafka import KafkaServer, open_kafka
from triggerer.errors import BrokerRefused, BrokerUnavailable


@pytest.fixture
def topic(kafka_server: KafkaServer) -> str:
    name = f"o-{uuid.uuid4().hex[:10]}"
    kafka_server.create_topic(name, 2)
    return name


async def test_a_broker_that_goes_and_comes_back_loses_and_skips_nothing(
    kafka_server: KafkaServer, topic: str
) -> None:
    kafka_server.produce(topic, [str(number) for number in range(50)])
    async with driving(producer_on(kafka_server.bootstrap_servers, topic, topic)) as driver:
        await driver.settled(50)
        await anyio.to_thread.run_sync(kafka_server.kill)
        await anyio.to_thread.run_sync(kafka_server.start)
        kafka_server.produce(topic, [str(number) for number in range(50, 100)])
        await driver.until(lambda: {str(number) for number in range(100)} <= set(driver.values))
        await driver.until(lambda: kafka_server.committed_offsets(topic, topic) == {0: 100, 1: 0})


async def test_a_commit_waits_for_a_broker_that_is_away(
    kafka_server: KafkaServer, topic: str
) -> None:
    kafka_server.produce(topic, ["a"])
    go_on = False
    producer = producer_on(kafka_server.bootstrap_servers, topic, topic)
    async with driving(producer, lambda _: ACKED if go_on else None) as driver:
        await driver.count(1)
        await anyio.to_thread.run_sync(kafka_server.stop)
        async with anyio.create_task_group() as tg:
            go_on = True
            tg.start_soon(driver.advance_waiting)
            await anyio.sleep(0.5)
            assert driver.advanced == []
            await anyio.to_thread.run_sync(kafka_server.start)
        assert kafka_server.committed_offsets(topic, topic)[0] in (0, 1)
        # If the first commit failed because the group had forgotten the member, the message is delivered again and
        # committed now.
        await driver.until(lambda: kafka_server.committed_offsets(topic, topic).get(0) == 1)


@pytest.mark.rule("a watcher works for half an hour and then silently stops")
async def test_a_broker_that_stays_away_ends_the_stream_with_an_error_that_names_it(
    kafka_server: KafkaServer, topic: str
) -> None:
    producer = producer_on(
        kafka_server.bootstrap_servers, topic, topic, commit_timeout_s=1.0, request_timeout_ms=2000
    )
    async with driving(producer) as driver:
        kafka_server.produce(topic, ["a"])
        await driver.settled(1)
        await anyio.to_thread.run_sync(kafka_server.stop)
        error = await driver.until_failed()
    assert isinstance(error, BrokerUnavailable)
    assert kafka_server.bootstrap_servers in str(error)


async def test_no_broker_at_the_start_is_an_error_that_says_where_it_looked() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # not listening: refused at once
        servers = f"127.0.0.1:{taken.getsockname()[1]}"
        async with driving(producer_on(servers, "any", "any")) as driver:
            error = await driver.until_failed()
    assert isinstance(error, BrokerUnavailable)
    assert servers in str(error)
    assert "is the broker running" in str(error)


async def test_an_unknown_topic_is_refused_with_the_way_to_create_it(
    kafka_server: KafkaServer,
) -> None:
    started = time.monotonic()
    async with driving(
        producer_on(kafka_server.bootstrap_servers, "no-such-topic", "any")
    ) as driver:
        error = await driver.until_failed()
    assert isinstance(error, BrokerRefused)
    assert "'no-such-topic'" in str(error)
    assert "--create --topic no-such-topic" in str(error)
    assert time.monotonic() - started < 5


async def test_a_topic_that_is_deleted_ends_the_stream_with_the_way_to_create_it(
    kafka_server: KafkaServer, topic: str
) -> None:
    kafka_server.produce(topic, ["a"])
    async with driving(producer_on(kafka_server.bootstrap_servers, topic, topic)) as driver:
        await driver.settled(1)
        await anyio.to_thread.run_sync(kafka_server.delete_topic, topic)
        error = await driver.until_failed()
    assert isinstance(error, BrokerRefused)
    assert f"'{topic}'" in str(error)
    assert f"--create --topic {topic}" in str(error)


async def test_no_topic_is_created_on_brokers_that_create_each_topic_that_is_asked_about() -> None:
    """By default, a broker creates a topic when a client asks about it. Then a deleted topic could come back, and a
    misspelt one would seem to be empty."""
    with service(open_kafka(creates_topics=True)) as server:
        servers = server.bootstrap_servers
        settings = KafkaSettings(bootstrap_servers=servers)
        with pytest.raises(BrokerRefused, match="there is no topic 'misspelt'"):
            await check_topics(settings, ["misspelt"])
        lag = await measure_lag(settings, ["misspelt"], "g", "earliest")
        assert lag.note == "there is no topic misspelt"
        assert server.topics() == set()
        server.create_topic("read")
        server.produce("read", ["a"])
        async with driving(producer_on(servers, "read", "read")) as driver:
            await driver.settled(1)
            await anyio.to_thread.run_sync(server.delete_topic, "read")
            error = await driver.until_failed()
        assert isinstance(error, BrokerRefused)
        assert server.topics() == set()


async def test_a_listener_that_does_not_speak_the_protocol_is_an_error_soon(
    kafka_server: KafkaServer,
) -> None:
    producer = producer_on(
        kafka_server.bootstrap_servers, "any", "any", request_timeout_ms=1000,
        security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN",
        sasl_plain_username="me", sasl_plain_password="secret",
    )  # fmt: skip
    async with driving(producer) as driver:
        error = await driver.until_failed()
    assert isinstance(error, (BrokerUnavailable, BrokerRefused))
    assert "secret" not in str(error)


async def test_a_check_of_topics_finds_those_that_are_there_and_creates_none(
    kafka_server: KafkaServer, topic: str
) -> None:
    settings = KafkaSettings(bootstrap_servers=kafka_server.bootstrap_servers)
    await check_topics(settings, [topic])
    for _ in range(2):
        with pytest.raises(BrokerRefused, match=f"there is no topic '{topic}-x'") as refused:
            await check_topics(settings, [topic, f"{topic}-x"])
    assert "kafka-topics.sh --create" in (refused.value.hint or "")


async def test_a_check_of_topics_says_that_nobody_answers() -> None:
    with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1") as away:
        await check_topics(KafkaSettings(bootstrap_servers="127.0.0.1:1"), ["orders"])
    assert "is the broker running" in (away.value.hint or "")


async def test_closing_a_stream_that_was_never_opened_is_fine(kafka_server: KafkaServer) -> None:
    await producer_on(kafka_server.bootstrap_servers, "any", "any").aclose()
