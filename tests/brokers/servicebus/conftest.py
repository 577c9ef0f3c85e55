"""Queues on the test Service Bus, and a proxy before it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from producers.servicebus import ServiceBusSharedStreamProducer
from tests.brokers.servicebus.driving import producer_on
from tests.services.brokers.servicebus import ServiceBusServer
from tests.services.brokers.servicebus.service import connection_string
from tests.services.tcp_proxy import TcpProxy, open_tcp_proxy

LOCK_S = 1.0


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue on the test Service Bus, and what tests need to know about it."""

    server: ServiceBusServer
    path: str
    port: int
    """The port of the server, or of a proxy before it."""

    def producer(self, **settings: Any) -> ServiceBusSharedStreamProducer:
        settings.setdefault("connection_string", connection_string(self.port))
        return producer_on(self.server, self.path, **settings)

    def send(self, *values: str, session: str | None = None) -> None:
        self.server.send(self.path, values, session_id=session)

    @property
    def values(self) -> list[str]:
        """The bodies of the messages in the queue, locked or not."""
        return self.server.values(self.path)

    @property
    def delivery_counts(self) -> list[int]:
        return [one["delivery_count"] for one in self.server.look(self.path)["messages"]]

    @property
    def locked(self) -> int:
        return sum(one["locked"] for one in self.server.look(self.path)["messages"])

    def order(self, do: str, **arguments: Any) -> Any:
        return self.server.order(do, path=self.path, **arguments)


MakeQueue = Callable[..., Queue]


@pytest.fixture
def proxy(servicebus_server: ServiceBusServer) -> Iterator[TcpProxy]:
    with open_tcp_proxy(servicebus_server.port) as opened:
        yield opened


@pytest.fixture
def make_queue(servicebus_server: ServiceBusServer, proxy: TcpProxy) -> Iterator[MakeQueue]:
    """Make a queue whose locks last a second, reached through the proxy."""

    def make(**settings: Any) -> Queue:
        name = f"s-{uuid.uuid4().hex[:10]}"
        servicebus_server.create(name, **{"lock_s": LOCK_S, **settings})
        return Queue(servicebus_server, name, proxy.port)

    yield make
    servicebus_server.order("tokens")


@pytest.fixture
def queue(make_queue: MakeQueue) -> Queue:
    return make_queue()


@pytest.fixture
def sessions(make_queue: MakeQueue) -> Queue:
    """A queue that requires sessions."""
    return make_queue(requires_session=True)
