"""Messages stay in hand while watchers work: in the real runtime, with filters that wait and filters that compute."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Hashable
from typing import Any, ClassVar

import anyio
import pytest

from tests.services.elasticmq import ElasticMqServer
from tests.sqs.conftest import Queue
from tests.sqs.driving import producer_on
from triggerer.abc import BaseEventTrigger, BrokerMessage, SharedStreamProducer, TriggerEvent
from triggerer.testing import StreamHarness

PERIOD_S = 1.0
"""The visibility timeout of the queue."""


class Working(BaseEventTrigger):
    """Takes its time over the message "slow"; the others pass."""

    server: ClassVar[ElasticMqServer]
    url: ClassVar[str]
    computes: ClassVar[bool]

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "Working", {}

    def shared_stream_key(self) -> Hashable:
        return "working"

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return producer_on(cls.server, cls.url)

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[BrokerMessage]
    ) -> AsyncIterator[TriggerEvent]:
        async for message in shared_stream:
            value = (message.value or b"").decode()
            if value == "slow":
                if self.computes:
                    time.sleep(PERIOD_S)
                else:
                    await anyio.sleep(PERIOD_S * 3.5)
            yield TriggerEvent({"value": value, "deliveries": message.deliveries})


@pytest.mark.rule("the task that renews locks starves while a filter computes")
@pytest.mark.parametrize("computes", [False, True], ids=["waits", "computes"])
async def test_a_filter_that_takes_long_loses_nobodys_messages(
    elasticmq: ElasticMqServer, brief: Queue, computes: bool
) -> None:
    """One that needs three periods keeps its own; one that computes on the loop for one keeps the others'."""
    Working.server, Working.url, Working.computes = elasticmq, brief.url, computes
    values = ["slow", *(f"m{number}" for number in range(20))]
    await asyncio.to_thread(brief.send, *values)
    async with StreamHarness() as streams:
        view = await streams.add(Working())
        with anyio.fail_after(60):
            while len(view.events) < len(values) or any(
                one.outstanding for one in streams.groups.values()
            ):
                assert view.error is None
                await anyio.sleep(0.05)
    assert sorted(event.payload["value"] for event in view.events) == sorted(values)
    assert {event.payload["deliveries"] for event in view.events} == {1}
    assert await asyncio.to_thread(brief.counts) == (0, 0)
