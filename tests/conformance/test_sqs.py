"""Runs the conformance suite on the SQS producer, with a standard queue and a FIFO queue of ElasticMQ."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest

from tests.brokers.sqs.driving import producer_on
from tests.services.brokers.elasticmq import ElasticMqServer
from tests.services.brokers.moto import open_moto
from tests.services.brokers.sqs_client import SqsClient
from tests.services.brokers.sqs_proxy import open_sqs_proxy
from triggerer.abc import BrokerMessage, SharedStreamProducer
from triggerer.testing import Feature, ProducerConformance

_VISIBILITY_S = 1


class _OnAQueue(ProducerConformance):
    """The hooks for both kinds of queue."""

    patience_s = 30.0
    quiet_s = 0.3
    lock_s = float(_VISIBILITY_S)
    # Each cancellation costs the rest of an open poll, so the suite cancels only at these waits.
    cancel_at = (1, 2, 4, 8, 16, 32)
    suffix = ""
    server: SqsClient

    async def setup(self) -> None:
        name = f"c-{uuid.uuid4().hex[:10]}"
        self.published: dict[int, list[str]] = {}
        await asyncio.to_thread(self._make, name)

    def _make(self, name: str) -> None:
        self.name = name
        self.dead = self.server.create_queue(f"{name}-dead{self.suffix}")
        self._make_queue()

    def _make_queue(self) -> None:
        self.queue = self.server.create_queue(
            f"{self.name}{self.suffix}", visibility_s=_VISIBILITY_S, dead_letters=self.dead
        )

    async def publish(self, values: Sequence[str], lane: int = 0) -> None:
        ids = await asyncio.to_thread(self.server.send, self.queue, values, group=f"group-{lane}")
        self.published.setdefault(lane, []).extend(ids)

    async def new_producer(self) -> SharedStreamProducer:
        return producer_on(self.server, self.queue, max_deliveries=self.max_deliveries)

    async def committed(self, lane: int = 0) -> int:
        left = await asyncio.to_thread(self.server.count, self.queue)
        return sum(map(len, self.published.values())) - left

    async def recreate(self) -> None:
        await asyncio.to_thread(self.server.delete_queue, self.queue)
        await asyncio.to_thread(self._make_queue)

    def value_of(self, event: Any) -> str | None:
        assert isinstance(event, BrokerMessage)
        return (event.value or b"").decode()

    async def dead_letters(self) -> list[str]:
        found = await asyncio.to_thread(self.server.take_all, self.dead)
        self._seen = [*getattr(self, "_seen", []), *(message["Body"] for message in found)]
        return self._seen


class TestStandardQueue(_OnAQueue):
    # Each message is a lane of its own, so the cases about order or a full lane do not apply. A queue has no position
    # to set back, and its messages cannot be read again.
    features = frozenset(Feature) - {
        Feature.ORDERING,
        Feature.LANES,
        Feature.PAUSE_LANES,
        Feature.SEEK,
        Feature.LOG,
    }

    async def publish_unordered(self, values: Sequence[str]) -> None:
        await self.publish(values)

    @pytest.fixture(autouse=True)
    def _server(self, elasticmq: ElasticMqServer) -> None:
        self.server = elasticmq


class TestFifoQueue(_OnAQueue):
    features = frozenset(Feature) - {Feature.SEEK, Feature.LOG}
    suffix = ".fifo"

    @pytest.fixture(autouse=True)
    def _server(self, elasticmq: ElasticMqServer) -> None:
        self.server = elasticmq

    async def setup(self) -> None:
        await super().setup()
        self.stack = AsyncExitStack()
        # ElasticMQ does not count the messages of each group, so a proxy records which messages are deleted.
        self.proxy = await self.stack.enter_async_context(open_sqs_proxy(self.server.endpoint))

    async def teardown(self) -> None:
        await self.stack.aclose()

    async def new_producer(self) -> SharedStreamProducer:
        return producer_on(
            self.server,
            self.queue,
            max_deliveries=self.max_deliveries,
            endpoint_url=self.proxy.endpoint,
        )

    async def committed(self, lane: int = 0) -> int:
        published = {one for ids in self.published.values() for one in ids}
        # The service's count may change a moment before or after the answer to a deletion. Read until both agree.
        with anyio.fail_after(self.patience_s):
            while True:
                left = await asyncio.to_thread(self.server.count, self.queue)
                deleted = self.proxy.deleted() & published
                if len(published) - left == len(deleted):
                    return len(deleted & set(self.published.get(lane, ())))
                await anyio.sleep(0.01)


@pytest.mark.soak
class TestStandardQueueOnMoto(TestStandardQueue):
    """The standard queue on moto, a second implementation of the API.

    moto's FIFO queues are left out, because moto may deliver a group's messages out of order after a redelivery.
    """

    @pytest.fixture(autouse=True)
    def _server(self) -> Iterator[None]:
        with open_moto() as server:
            self.server = server
            yield
