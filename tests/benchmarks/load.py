"""Sends messages for the service: a backlog at full speed, or a stream at a steady rate."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any

import orjson
from aiokafka import AIOKafkaProducer

PARTITIONS = 8
WATCHERS = 20


@dataclass(frozen=True, slots=True)
class Sent:
    """Where a message is at the broker, and when it was handed to the Kafka client (CLOCK_MONOTONIC, ns)."""

    partition: int
    offset: int
    at: int


@dataclass(frozen=True, slots=True)
class Paced:
    """A stream's messages, and the seconds that it took to send them."""

    messages: Sequence[Sent]
    seconds: float
    latest_s: float
    """The largest delay of a message against its due time."""


def message(number: int) -> bytes:
    """Return about 120 bytes of JSON.

    Some DAG files have 20 watchers that each match one message in 20. The field `w` is the matching watcher's number.
    """
    content = {
        "n": number,
        "w": number % WATCHERS,
        "carrier": "UA",
        "origin": "EWR",
        "dest": "IAH",
        "tailnum": f"N{number % 100_000:05}",
        "dep_delay": number % 180 - 10,
        "distance": 1400.5,
    }
    return orjson.dumps(content)


async def publish_backlog(bootstrap: str, topic: str, count: int) -> None:
    """Write `count` messages evenly over the partitions, and wait until the broker has acknowledged them."""
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, linger_ms=20, max_batch_size=1 << 18
    ) as producer:
        last: list[Any] = []
        for number in range(count):
            partition = number % PARTITIONS
            future = await producer.send(topic, message(number), partition=partition)
            if number >= count - PARTITIONS:
                last.append(future)
        await asyncio.gather(*last)
        await producer.flush()


async def publish_paced(
    bootstrap: str, topic: str, *, rate: float, seconds: float, first: int = 0
) -> Paced:
    """Send one message every `1 / rate` seconds, without waiting for earlier messages (an open loop)."""
    count = max(1, round(rate * seconds))
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=0, acks=1) as producer:
        # The client's first request fetches metadata. It must not count as part of the first message's latency.
        await producer.partitions_for(topic)
        begun = monotonic_ns()
        waiting: list[tuple[int, Any]] = []
        latest = 0
        for number in range(count):
            due = begun + int(number / rate * 1e9)
            now = await _wait_until(due)
            latest = max(latest, now - due)
            waiting.append(
                (
                    now,
                    await producer.send(
                        topic, message(first + number), partition=number % PARTITIONS
                    ),
                )
            )
        took = (monotonic_ns() - begun) / 1e9
        placed = [(at, await future) for at, future in waiting]
    messages = [Sent(record.partition, record.offset, at) for at, record in placed]
    return Paced(messages, took, latest / 1e9)


async def _wait_until(due: int) -> int:
    """Wait until `due`, and return the instant now (CLOCK_MONOTONIC, ns)."""
    if (now := monotonic_ns()) < due:
        await asyncio.sleep((due - now) / 1e9)
        now = max(monotonic_ns(), due)
    return now
