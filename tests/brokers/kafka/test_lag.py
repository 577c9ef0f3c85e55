"""The consumer lag that an operator sees, measured from outside of the group on the real broker."""

from __future__ import annotations

import asyncio
import socket
import uuid

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaConnectionError

from producers.kafka.lag import measure_lag
from producers.kafka.settings import KafkaSettings
from tests.brokers.kafka.driving import connections_to, driving, producer_on
from tests.services.brokers.kafka import KafkaServer
from triggerer.abc import SourceLag
from triggerer.errors import BrokerUnavailable


def settings_for(servers: str) -> KafkaSettings:
    return KafkaSettings.from_mapping("test", {"bootstrap_servers": servers})


@pytest.fixture
def topic(kafka_server: KafkaServer) -> str:
    """Seven messages in two partitions."""
    name = f"t-{uuid.uuid4().hex[:10]}"
    kafka_server.create_topic(name, 2)
    kafka_server.produce(name, [*"abcde"], partition=0)
    kafka_server.produce(name, [*"fg"], partition=1)
    return name


async def test_where_nothing_is_committed_it_is_what_will_be_read(
    kafka_server: KafkaServer, topic: str
) -> None:
    settings = settings_for(kafka_server.bootstrap_servers)
    found = await measure_lag(settings, [topic], "nobody-yet", "earliest")
    assert found == SourceLag(7, {f"{topic}[0]": 5, f"{topic}[1]": 2})
    assert (await measure_lag(settings, [topic], "nobody-yet", "latest")).messages == 0
    start = {topic: {"0": 3}}
    assert (await measure_lag(settings, [topic], "nobody-yet", start)).messages == 4
    pattern = await measure_lag(settings, [f"^{topic}$"], "nobody-yet", "earliest")
    assert pattern.messages == 7


async def test_it_is_the_end_less_what_the_group_has_committed(
    kafka_server: KafkaServer, topic: str
) -> None:
    servers = kafka_server.bootstrap_servers
    settings = settings_for(servers)
    async with driving(producer_on(servers, topic, topic)) as driver:
        await driver.settled(7)
        # The group has a member during this measurement, which must not disturb it.
        assert (await measure_lag(settings, [topic], topic, "earliest")).messages == 0
        kafka_server.produce(topic, ["h"], partition=1)
        await driver.settled(8)
    kafka_server.produce(topic, [*"ijk"], partition=1)
    found = await measure_lag(settings, [topic], topic, "latest")
    assert found == SourceLag(3, {f"{topic}[0]": 0, f"{topic}[1]": 3})


async def test_a_topic_that_the_group_has_not_read_counts_from_start_and_a_new_partition_from_its_beginning(
    kafka_server: KafkaServer, topic: str
) -> None:
    servers, other = kafka_server.bootstrap_servers, f"{topic}-b"
    settings = settings_for(servers)
    async with driving(producer_on(servers, topic, topic)) as driver:
        await driver.settled(7)
    kafka_server.create_topic(other, 1)
    kafka_server.produce(other, [*"xyz"])
    kafka_server.add_partitions(topic, 3)
    kafka_server.produce(topic, [*"hi"], partition=2)
    known = {f"{topic}[0]": 0, f"{topic}[1]": 0, f"{topic}[2]": 2}
    both = [topic, other]
    found = await measure_lag(settings, both, topic, "latest")
    assert found == SourceLag(2, known | {f"{other}[0]": 0})
    found = await measure_lag(settings, both, topic, {other: {"0": 1}})
    assert found == SourceLag(4, known | {f"{other}[0]": 2})
    # A stream with a pattern reads a topic that it has found later from the topic's beginning.
    found = await measure_lag(settings, [f"^{topic}.*"], topic, "latest")
    assert found == SourceLag(5, known | {f"{other}[0]": 3})


@pytest.mark.parametrize("error", [KafkaConnectionError("gone"), asyncio.CancelledError()])
async def test_a_consumer_that_cannot_be_stopped_leaves_no_connection_open(
    kafka_server: KafkaServer,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
) -> None:
    stop = AIOKafkaConsumer.stop

    async def stop_and_raise(consumer: AIOKafkaConsumer) -> None:
        await stop(consumer)
        raise error

    monkeypatch.setattr(AIOKafkaConsumer, "stop", stop_and_raise)
    before = connections_to(kafka_server)
    settings = settings_for(kafka_server.bootstrap_servers)
    assert (await measure_lag(settings, [topic], "nobody-yet", "earliest")).messages == 7
    assert connections_to(kafka_server) == before


async def test_a_topic_that_is_not_there_has_no_figure(kafka_server: KafkaServer) -> None:
    settings = settings_for(kafka_server.bootstrap_servers)
    found = await measure_lag(settings, ["not-there"], "g", "earliest")
    assert found.messages is None
    assert "not-there" in (found.note or "")


async def test_a_cluster_that_does_not_answer_is_an_error_that_names_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # not listening: refused at once
        servers = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(BrokerUnavailable, match=servers):
            await measure_lag(settings_for(servers), ["t"], "g", "earliest")


async def test_the_producer_knows_what_waits_at_the_broker_without_asking(
    kafka_server: KafkaServer, topic: str
) -> None:
    producer = producer_on(kafka_server.bootstrap_servers, topic, topic)
    assert producer.get_waiting() is None
    async with driving(producer) as driver:
        await driver.settled(7)
        assert producer.get_waiting() == {(topic, 0): 0, (topic, 1): 0}
        kafka_server.produce(topic, [*"hij"], partition=1)
        await driver.settled(10)
        assert producer.get_waiting() == {(topic, 0): 0, (topic, 1): 0}
    another = producer_on(kafka_server.bootstrap_servers, topic, f"{topic}-again")
    messages = another.open_stream()
    try:
        # Read nine of ten messages. By then, both partitions have been fetched, so their ends are known.
        for _ in range(9):
            await anext(messages)
        waiting = another.get_waiting()
        assert waiting is not None
        assert sorted(waiting.values()) == [0, 1]
    finally:
        await messages.aclose()
        await another.aclose()
