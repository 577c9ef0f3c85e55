"""A topic with messages, and a producer that reads the topic."""

from __future__ import annotations

import uuid

import pytest

from producers.kafka import KafkaSharedStreamProducer
from tests.brokers.kafka.driving import producer_on
from tests.services.brokers.kafka import KafkaServer


@pytest.fixture
def topic(kafka_server: KafkaServer) -> str:
    """The name of a topic with ten messages, in two batches. Modules that need another topic override this fixture."""
    name = f"t-{uuid.uuid4().hex[:10]}"
    kafka_server.create_topic(name)
    kafka_server.produce(name, [*"abcde"])
    kafka_server.produce(name, [*"fghij"])
    return name


@pytest.fixture
def producer(kafka_server: KafkaServer, topic: str) -> KafkaSharedStreamProducer:
    """A producer that reads the topic, in a consumer group with the topic's name."""
    return producer_on(kafka_server.bootstrap_servers, topic, topic)
