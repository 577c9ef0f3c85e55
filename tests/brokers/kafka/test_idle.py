"""On a real Apache Kafka, an idle stream fetches rarely, without a delay of messages or other requests."""

from __future__ import annotations

import asyncio
import time
import uuid

import pytest

from producers.kafka import assignment
from producers.kafka.assignment import Assignment
from tests.brokers.kafka.driving import ACKED, FAILED, Driver, driving, producer_on
from tests.services.brokers.kafka import KafkaServer

USUAL_MS, IDLE_MS = 500, 1_500
"""How long the broker may hold a fetch without messages: usually, and if the stream is idle (see `producer_on`)."""


@pytest.fixture
def topic(kafka_server: KafkaServer) -> str:
    name = f"i-{uuid.uuid4().hex[:10]}"
    kafka_server.create_topic(name, 2)
    return name


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list to which each fetch adds the time, in ms, that the broker may wait for messages.

    A stream counts as idle after half a second.
    """
    monkeypatch.setattr(assignment, "_IDLE_AFTER_S", 0.5)
    found: list[int] = []
    fetch_wait_ms = Assignment.fetch_wait_ms

    def noted(self: Assignment, usual_ms: int) -> int:
        found.append(fetch_wait_ms(self, usual_ms))
        return found[-1]

    monkeypatch.setattr(Assignment, "fetch_wait_ms", noted)
    return found


async def _until_idle(driver: Driver, waits: list[int]) -> None:
    waits.clear()
    while IDLE_MS not in waits:
        assert driver.error is None
        await asyncio.sleep(0.02)
    # Give the fetch time to reach the broker.
    await asyncio.sleep(0.1)


async def test_an_idle_stream_asks_seldom_and_gets_a_message_and_its_redelivery_at_once(
    kafka_server: KafkaServer, topic: str, waits: list[int]
) -> None:
    outcomes = [FAILED, ACKED]
    producer = producer_on(
        kafka_server.bootstrap_servers,
        topic,
        topic,
        redelivery_delay_s=0.1,
        redelivery_delay_max_s=0.1,
    )
    async with driving(producer, lambda _: outcomes.pop(0)) as driver:
        await _until_idle(driver, waits)
        waits.clear()
        began = time.monotonic()
        await asyncio.to_thread(kafka_server.produce, topic, ["a"])
        await driver.settled(2)
        took = time.monotonic() - began
        assert driver.values == ["a", "a"]
        assert took < 1.2, "the fetch of the empty partition delayed the message"
        assert set(waits) <= {50, USUAL_MS}
        await _until_idle(driver, waits)
        waits.clear()
        # In this time an idle stream makes only three fetches.
        await asyncio.sleep(4)
        assert len(waits) <= 3


async def test_a_look_at_the_topics_does_not_wait_for_the_fetch_of_an_idle_stream(
    kafka_server: KafkaServer, topic: str, waits: list[int]
) -> None:
    producer = producer_on(kafka_server.bootstrap_servers, topic, topic)
    async with driving(producer) as driver:
        await _until_idle(driver, waits)
        assert producer._assignment is not None
        began = time.monotonic()
        assert await producer._assignment.find_recreated() is None
        assert time.monotonic() - began < 0.5


async def test_a_partition_that_comes_to_an_idle_stream_is_read_soon(
    kafka_server: KafkaServer, topic: str, waits: list[int]
) -> None:
    # Two members share the topic. `one` is idle when `other` leaves, and must soon read the partition of `other`.
    one = producer_on(kafka_server.bootstrap_servers, topic, topic, heartbeat_interval_ms=200)
    other = producer_on(kafka_server.bootstrap_servers, topic, topic, heartbeat_interval_ms=200)
    async with driving(one) as driver:
        async with driving(other) as second:
            while not (other.lanes and len(one.lanes) == 1):
                assert driver.error is second.error is None
                await asyncio.sleep(0.02)
            await _until_idle(driver, waits)
        began = time.monotonic()
        for partition in range(2):
            await asyncio.to_thread(
                kafka_server.produce, topic, [f"{partition}"], partition=partition
            )
        await driver.settled(2)
        assert sorted(driver.values) == ["0", "1"]
        assert time.monotonic() - began < 10
