"""A tiny runtime. It pulls a producer's stream, resolves messages as the test says, and advances lane by lane."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import psutil

from producers.kafka import KafkaMessage, KafkaSharedStreamProducer
from producers.kafka.settings import KafkaSettings
from tests.services.brokers.kafka import KafkaServer
from tests.services.brokers.kafka_client import KafkaClient
from triggerer.abc import AdvanceItem, AdvanceOutcome

ACKED = AdvanceOutcome(acked=1, failed=0, rejected=0)
FAILED = AdvanceOutcome(acked=0, failed=1, rejected=0)
REJECTED = AdvanceOutcome(acked=0, failed=0, rejected=1)
NOBODY = AdvanceOutcome(acked=0, failed=0, rejected=0)

Resolve = Callable[[KafkaMessage], AdvanceOutcome | None]
TIMEOUT_S = 30.0


def everything(_: KafkaMessage) -> AdvanceOutcome:
    return ACKED


class Driver:
    """Reads a producer's messages. Asks `resolve` for the outcome of each, and advances each lane in order.

    If `resolve` returns None, the message stays unresolved and its lane waits.
    """

    def __init__(self, producer: KafkaSharedStreamProducer, resolve: Resolve) -> None:
        self.producer = producer
        self.resolve = resolve
        self.seen: list[KafkaMessage] = []
        self.advanced: list[KafkaMessage] = []
        self.error: BaseException | None = None
        self._changed = asyncio.Event()
        self._lanes: dict[Any, list[KafkaMessage]] = {}
        self._lanes_advancing: set[Any] = set()

    @property
    def values(self) -> list[str]:
        return [(message.value or b"").decode() for message in self.seen]

    @property
    def keys(self) -> list[str]:
        return [self.producer.get_idempotency_key(message) for message in self.seen]

    def note(self) -> None:
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition is true. If the stream fails before, raise its error."""
        with anyio.fail_after(TIMEOUT_S):
            while not condition():
                if self.error is not None:
                    raise self.error
                self._changed.clear()
                await self._changed.wait()

    async def until_failed(self) -> BaseException:
        with anyio.fail_after(TIMEOUT_S):
            while self.error is None:
                self._changed.clear()
                await self._changed.wait()
        return self.error

    async def count(self, number: int) -> None:
        await self.until(lambda: len(self.seen) >= number)

    async def settled(self, number: int) -> None:
        await self.until(lambda: len(self.advanced) >= number)

    async def run(self) -> None:
        async with anyio.create_task_group() as tg:
            stream = self.producer.open_stream()
            try:
                async for event, payload in stream:
                    assert event is payload
                    self.seen.append(event)
                    lane = self.producer.get_advance_lane(payload)
                    self._lanes.setdefault(lane, []).append(payload)
                    self.go_on(tg, lane)
                    self.note()
            except Exception as error:  # noqa: BLE001 - the test asks for it
                self.error = error
                self.note()
            finally:
                with anyio.CancelScope(shield=True):
                    await stream.aclose()
                tg.cancel_scope.cancel()

    def go_on(self, tg: Any, lane: Any) -> None:
        if lane not in self._lanes_advancing:
            self._lanes_advancing.add(lane)
            tg.start_soon(self._advance, lane)

    async def _advance(self, lane: Any) -> None:
        """Advance messages from the head of the lane, up to the first unresolved message."""
        try:
            while True:
                batch = []
                for message in self._lanes[lane]:
                    outcome = self.resolve(message)
                    if outcome is None:
                        break
                    batch.append(AdvanceItem(message, outcome))
                if not batch:
                    return
                del self._lanes[lane][: len(batch)]
                await self.producer.advance(batch)
                self.advanced.extend(item.broker_payload for item in batch)
                self.note()
        except Exception as error:  # noqa: BLE001 - the test asks for it
            self.error = error
            self.note()
        finally:
            self._lanes_advancing.discard(lane)

    async def advance_waiting(self) -> None:
        """Call `resolve` again for the messages that it left unresolved, and advance the lanes."""
        async with anyio.create_task_group() as tg:
            for lane in list(self._lanes):
                self.go_on(tg, lane)


def producer_on(
    servers: str, topics: str | list[str], group: str, *, start: Any = "earliest", **settings: Any
) -> KafkaSharedStreamProducer:
    """A producer with short delays."""
    quick = {
        "bootstrap_servers": servers,
        "redelivery_delay_s": 0.05,
        "redelivery_delay_max_s": 0.2,
        "session_timeout_ms": 6000,
        "heartbeat_interval_ms": 300,
        "metadata_max_age_ms": 1000,
    }
    return KafkaSharedStreamProducer(
        [topics] if isinstance(topics, str) else topics,
        settings=KafkaSettings.from_mapping("test", quick | settings),
        group=group,
        start=start,  # type: ignore[arg-type]
    )


@asynccontextmanager
async def driving(
    producer: KafkaSharedStreamProducer, resolve: Resolve = everything
) -> AsyncIterator[Driver]:
    """Run a producer while the block lasts; leave its group afterwards."""
    driver = Driver(producer, resolve)
    try:
        async with anyio.create_task_group() as tg:
            tg.start_soon(driver.run)
            yield driver
            tg.cancel_scope.cancel()
    finally:
        await producer.aclose()


async def read(kafka: KafkaClient, topic: str, number: int) -> Driver:
    """Read `number` messages of a topic in a separate group, and leave the group. The driver has the messages."""
    async with driving(producer_on(kafka.bootstrap_servers, topic, topic)) as driver:
        await driver.settled(number)
    return driver


def connections_to(server: KafkaServer) -> int:
    """Return how many sockets of this process are connected to the broker."""
    there = psutil.Process().net_connections("tcp")
    return sum(bool(one.raddr) and one.raddr.port == server.port for one in there)
