"""The triggers of Airflow's Kafka provider run on a real broker. The tests need an environment with Airflow."""

import uuid
from typing import Any

import anyio
import pytest

pytest.importorskip("airflow", reason="Airflow is not installed in this environment")

from airflow.providers.apache.kafka.triggers.shared_stream import KafkaSharedStreamTrigger
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk.bases.hook import BaseHook
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.services.brokers.kafka import KafkaServer
from triggerer import abc
from triggerer.errors import ConfigurationError
from triggerer.testing import HostedView, StreamHarness
from watchers.airflow import AirflowEventTrigger


class Topic:
    """A topic and a consumer group that only one test uses, with the connection to them."""

    def __init__(self, server: KafkaServer) -> None:
        self.name = self.group = f"airflow-{uuid.uuid4().hex[:8]}"
        self.servers = server.bootstrap_servers
        server.create_topic(self.name)

    def connection(self, connection_id: str) -> dict[str, Any]:
        if connection_id != "kafka_default":
            raise ConfigurationError(f"there is no connection {connection_id!r}")
        return {
            "bootstrap_servers": self.servers,
            "group_id": self.group,
            "enable_auto_commit": "false",
            "auto_offset_reset": "earliest",
        }

    def send(self, *values: str) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        for value in values:
            producer.produce(self.name, value=value.encode())
        assert producer.flush(30) == 0

    def committed(self) -> int:
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": self.group})
        try:
            (position,) = consumer.committed([TopicPartition(self.name, 0)], timeout=30)
            return int(position.offset)
        finally:
            consumer.close()


@pytest.fixture
def topic(kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> Topic:
    made = Topic(kafka_server)
    monkeypatch.setattr(abc, "_resolve_connection", made.connection)
    return made


async def _until(view: HostedView, count: int, *, unpersisted: bool = False) -> None:
    with anyio.fail_after(60):
        while len(view.unpersisted if unpersisted else view.events) < count:
            assert view.error is None, view.error
            await anyio.sleep(0.05)


async def _until_committed(topic: Topic, offset: int) -> None:
    with anyio.fail_after(60):
        while await anyio.to_thread.run_sync(topic.committed) != offset:  # noqa: ASYNC110  (the broker's)
            await anyio.sleep(0.2)


async def test_the_shared_stream_trigger_fires_for_each_message_and_commits_what_is_durable(
    topic: Topic,
) -> None:
    topic.send("one", "two", "three")
    async with StreamHarness(persistence="manual") as streams:
        view = await streams.add(
            AirflowEventTrigger(KafkaSharedStreamTrigger(topics=[topic.name], poll_timeout=0.2))
        )
        await _until(view, 3, unpersisted=True)
        assert await anyio.to_thread.run_sync(topic.committed) < 0
        await streams.persist(2)
        await _until_committed(topic, 2)
        assert [event.payload for event in view.events] == ["one", "two"]


async def test_what_was_not_durable_comes_again_to_the_next_owner(topic: Topic) -> None:
    topic.send("one", "two")
    trigger = AirflowEventTrigger(KafkaSharedStreamTrigger(topics=[topic.name], poll_timeout=0.2))
    async with StreamHarness(persistence="manual") as streams:
        view = await streams.add(trigger)
        await _until(view, 2, unpersisted=True)
        await streams.persist(1)
        await _until_committed(topic, 1)
    async with StreamHarness() as streams:
        view = await streams.add(trigger)
        await _until(view, 1)
        assert [event.payload for event in view.events] == ["two"]
        await _until_committed(topic, 2)


async def test_the_message_queue_trigger_fires(topic: Topic) -> None:
    topic.send("hello")
    async with StreamHarness() as streams:
        view = await streams.add(
            AirflowEventTrigger(
                MessageQueueTrigger(
                    scheme="kafka", topics=[topic.name], poll_timeout=0.2, poll_interval=0.1
                )
            )
        )
        await _until(view, 1)
        assert view.events[0].payload == "hello"


async def test_hooks_find_the_connections_of_our_configuration(topic: Topic) -> None:
    AirflowEventTrigger(KafkaSharedStreamTrigger(topics=[topic.name]))
    connection = await BaseHook.aget_connection("kafka_default")
    assert connection.conn_type == "kafka"
    assert connection.extra_dejson == {
        "bootstrap.servers": topic.servers,
        "group.id": topic.group,
        "enable.auto.commit": "false",
        "auto.offset.reset": "earliest",
    }
