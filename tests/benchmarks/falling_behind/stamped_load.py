"""Sends messages to one topic at a steady rate. Each message contains the instant at which it was sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any, Final

import anyio
import orjson
from aiokafka import AIOKafkaProducer

_MOST_UNANSWERED: Final = 10_000


@dataclass(frozen=True, slots=True)
class Stretch:
    """The messages of one phase, with numbers from `first` up to `end`. The broker acknowledged all of them."""

    first: int
    end: int
    """One more than the number of the last message."""
    seconds: float
    latest_s: float
    """The largest delay of a message against its due time."""


async def publish_stamped(
    bootstrap: str,
    topic: str,
    *,
    partitions: int,
    rate: float,
    seconds: float,
    first: int,
    is_sick: bool,
    goes_on: Callable[[], bool] = lambda: True,
) -> Stretch:
    """Send one message every `1 / rate` seconds, without waiting for earlier messages (an open loop).

    A message has its number `n`, the number's last digit `d`, the flag `sick`, and the instant `at` of its sending
    (CLOCK_MONOTONIC, ns). The producer is idempotent, so each message is in the log once and in order.
    """
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, linger_ms=0, enable_idempotence=True
    ) as producer:
        # The client's first request fetches metadata. It must not count as part of the first message's latency.
        await producer.partitions_for(topic)
        begun = monotonic_ns()
        unanswered: deque[Any] = deque()
        latest, number = 0, first
        while number - first < rate * seconds and goes_on():
            due = begun + int((number - first) / rate * 1e9)
            if (now := monotonic_ns()) < due:
                await anyio.sleep((due - now) / 1e9)
                now = max(monotonic_ns(), due)
            latest = max(latest, now - due)
            message = orjson.dumps({"n": number, "d": number % 10, "sick": is_sick, "at": now})
            unanswered.append(await producer.send(topic, message, partition=number % partitions))
            while unanswered and (unanswered[0].done() or len(unanswered) > _MOST_UNANSWERED):
                await unanswered.popleft()
            number += 1
        took = (monotonic_ns() - begun) / 1e9
        for future in unanswered:
            await future
    return Stretch(first, number, took, latest / 1e9)
