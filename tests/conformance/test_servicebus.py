"""Runs the conformance suite on the Service Bus producer, with a queue, a subscription and sessions."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from tests.brokers.servicebus.driving import producer_on, value_of
from tests.services.brokers.servicebus import ServiceBusServer
from triggerer.abc import SharedStreamProducer
from triggerer.testing import Feature, ProducerConformance


class _OnServiceBus(ProducerConformance):
    patience_s = 20.0
    quiet_s = 0.2
    lock_s = 1.0
    cancel_at = (1, 2, 3, 5, 9)
    requires_session = False

    @pytest.fixture(autouse=True)
    def _broker(self, servicebus_server: ServiceBusServer) -> None:
        self.server = servicebus_server

    async def setup(self) -> None:
        self.queue = f"c-{uuid.uuid4().hex[:10]}"
        self.published: dict[str, int] = {}
        await asyncio.to_thread(self._create)

    def _create(self) -> None:
        self.server.create(
            self.queue,
            requires_session=self.requires_session,
            lock_s=self.lock_s,
            max_delivery_count=50,
        )
        self.server.create(f"{self.queue}-dead")

    async def recreate(self) -> None:
        await asyncio.to_thread(self.server.order, "delete", path=self._path)
        await asyncio.to_thread(self._create)

    @property
    def _entity(self) -> tuple[str, str | None]:
        return self.queue, None

    @property
    def _path(self) -> str:
        return self.queue

    async def publish(self, values: Sequence[str], lane: int = 0) -> None:
        session = f"session-{lane}" if self.requires_session else None
        self.published.update(dict.fromkeys(values, lane))
        await asyncio.to_thread(self.server.send, self.queue, values, session_id=session)

    async def new_producer(self) -> SharedStreamProducer:
        return producer_on(
            self.server,
            *self._entity,
            max_deliveries=self.max_deliveries,
            dead_letter_queue=f"{self.queue}-dead",
        )

    async def committed(self, lane: int = 0) -> int:
        left = set(await asyncio.to_thread(self.server.values, self._path))
        return sum(value not in left for value, of in self.published.items() if of == lane)

    def value_of(self, event: Any) -> str | None:
        return value_of(event)

    async def dead_letters(self) -> list[str]:
        dead = await asyncio.to_thread(self.server.dead_letters, self._path)
        sent = await asyncio.to_thread(self.server.values, f"{self.queue}-dead")
        return [message["value"] for message in dead] + sent


_WITHOUT_SESSIONS = frozenset(Feature) - {
    Feature.ORDERING,
    Feature.LANES,
    Feature.PAUSE_LANES,
    Feature.SEEK,
    Feature.LOG,
}


class TestQueue(_OnServiceBus):
    features = _WITHOUT_SESSIONS

    async def publish_unordered(self, values: Sequence[str]) -> None:
        await self.publish(values)


class TestSubscription(_OnServiceBus):
    # Other cases would repeat the queue's: only the address differs.
    features = frozenset(
        {Feature.REDELIVERY, Feature.DEAD_LETTER, Feature.IDEMPOTENCY, Feature.RECREATION}
    )
    cancel_at = (1, 4)

    def _create(self) -> None:
        self.server.create(self._path, lock_s=self.lock_s, max_delivery_count=50)
        self.server.create(f"{self.queue}-dead")

    @property
    def _entity(self) -> tuple[str, str | None]:
        return self.queue, "all"

    @property
    def _path(self) -> str:
        return f"{self.queue}/Subscriptions/all"


class TestSessions(_OnServiceBus):
    features = frozenset(Feature) - {Feature.SEEK, Feature.LOG}
    requires_session = True
