"""A queue on ElasticMQ, and a proxy before it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from producers.sqs import SqsSharedStreamProducer
from tests.brokers.sqs.driving import producer_on
from tests.services.brokers.elasticmq import ElasticMqServer
from tests.services.brokers.sqs_proxy import SqsProxy, open_sqs_proxy


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue with a dead-letter queue. Producers reach it through the proxy, and tests directly."""

    server: ElasticMqServer
    proxy: SqsProxy
    url: str
    dead: str

    def producer(self, **settings: Any) -> SqsSharedStreamProducer:
        """Return a producer that reads the queue through the proxy."""
        return producer_on(self.server, self.url, endpoint_url=self.proxy.endpoint, **settings)

    def send(self, *bodies: str, group: str | None = None) -> list[str]:
        return self.server.send(self.url, bodies, group=group)

    def counts(self) -> tuple[int, int]:
        """Return the number of visible messages, and the number of messages in flight."""
        return self.server.counts(self.url)


@pytest.fixture
async def proxy(elasticmq: ElasticMqServer) -> AsyncIterator[SqsProxy]:
    async with open_sqs_proxy(elasticmq.endpoint) as opened:
        yield opened


def make_queue(
    server: ElasticMqServer, proxy: SqsProxy, suffix: str = "", visibility_s: int = 30
) -> Queue:
    name = f"s-{uuid.uuid4().hex[:10]}"
    dead = server.create_queue(f"{name}-dead{suffix}")
    url = server.create_queue(f"{name}{suffix}", visibility_s=visibility_s, dead_letters=dead)
    return Queue(server, proxy, url, dead)


@pytest.fixture
def queue(elasticmq: ElasticMqServer, proxy: SqsProxy) -> Queue:
    """A standard queue with a visibility timeout of 30 s."""
    return make_queue(elasticmq, proxy)


@pytest.fixture
def fifo(elasticmq: ElasticMqServer, proxy: SqsProxy) -> Queue:
    """A FIFO queue with a visibility timeout of 30 s."""
    return make_queue(elasticmq, proxy, ".fifo")


@pytest.fixture
def brief(elasticmq: ElasticMqServer, proxy: SqsProxy) -> Queue:
    """A standard queue with a visibility timeout of 1 s, the shortest."""
    return make_queue(elasticmq, proxy, visibility_s=1)
