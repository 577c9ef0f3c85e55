"""Messages that their writers compressed."""

import uuid

import pytest
from aiokafka import AIOKafkaProducer

from tests.brokers.kafka.driving import read
from tests.services.brokers.kafka import KafkaServer


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_a_compressed_message_is_read_as_it_was(
    kafka_server: KafkaServer, codec: str
) -> None:
    servers, topic = kafka_server.bootstrap_servers, f"z-{uuid.uuid4().hex[:10]}"
    kafka_server.create_topic(topic)
    values = [letter * 1000 for letter in "abc"]
    async with AIOKafkaProducer(bootstrap_servers=servers, compression_type=codec) as writer:
        for value in values:
            await writer.send_and_wait(topic, value.encode())
    driver = await read(kafka_server, topic, 3)
    assert driver.values == values
