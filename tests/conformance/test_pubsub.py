"""The Pub/Sub producer against the suite, on Google's own in-memory server."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from tests.pubsub.driving import producer_on, value_of
from triggerer.abc import SharedStreamProducer
from triggerer.testing import Feature, ProducerConformance

if TYPE_CHECKING:
    from tests.services.pubsub import PubSubServer


class TestPubSub(ProducerConformance):
    # A message without an ordering key is a lane of its own. pstest cannot seek: what comes again then has no content.
    features = frozenset(Feature) - {
        Feature.ORDERING,
        Feature.LANES,
        Feature.PAUSE_LANES,
        Feature.SEEK,
        Feature.LOG,
    }
    patience_s = 30.0
    quiet_s = 0.2
    lock_s = 2.0

    @pytest.fixture(autouse=True)
    def _broker(self, pubsub_server: PubSubServer) -> None:
        self.server = pubsub_server

    async def setup(self) -> None:
        self.name = f"c-{uuid.uuid4().hex[:10]}"
        self.published: list[str] = []
        self.dead: list[str] = []
        await asyncio.to_thread(self.server.create, self.name)
        await asyncio.to_thread(self.server.create, f"{self.name}-dead")

    async def publish(self, values: Sequence[str], lane: int = 0) -> None:
        self.published += await asyncio.to_thread(self.server.publish, self.name, values)

    async def new_producer(self) -> SharedStreamProducer:
        return producer_on(
            self.server.host,
            self.name,
            max_deliveries=self.max_deliveries,
            dead_letter_topic=f"{self.name}-dead",
            ack_deadline_s=int(self.lock_s),
        )

    async def committed(self, lane: int = 0) -> int:
        return await asyncio.to_thread(self.server.acked, self.published)

    def value_of(self, event: Any) -> str:
        return value_of(event)

    async def dead_letters(self) -> list[str]:
        taken = await asyncio.to_thread(self.server.take, f"{self.name}-dead")
        self.dead += [one.data.decode() for one in taken]
        return self.dead
