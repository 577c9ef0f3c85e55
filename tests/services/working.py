"""Runs a watcher that works on a message for longer than its lock lasts, and checks that each message comes once."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Collection, Hashable
from typing import Any, ClassVar

import anyio

from triggerer.abc import BaseEventTrigger, BrokerMessage, SharedStreamProducer, TriggerEvent
from triggerer.testing import StreamHarness


class Working(BaseEventTrigger):
    """A trigger that computes and waits at the message "slow", and takes no time for other messages."""

    make: ClassVar[Callable[[], SharedStreamProducer]]
    waits_s: ClassVar[float]
    computes_s: ClassVar[float]

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "Working", {}

    def shared_stream_key(self) -> Hashable:
        return "working"

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return cls.make()

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[BrokerMessage]
    ) -> AsyncIterator[TriggerEvent]:
        async for message in shared_stream:
            value = (message.value or b"").decode()
            if value == "slow":
                end = time.perf_counter() + self.computes_s
                while time.perf_counter() < end:
                    pass
                await anyio.sleep(self.waits_s)
            yield TriggerEvent({"value": value, "deliveries": message.deliveries})


async def check_that_each_comes_once(
    make: Callable[[], SharedStreamProducer],
    values: Collection[str],
    *,
    waits_s: float = 0,
    computes_s: float = 0,
) -> None:
    """Run a watcher on the producer's messages, and check that the watcher gets each message once.

    Args:
        values: The values of the messages. At the value "slow" the watcher computes and waits.
    """
    Working.make, Working.waits_s, Working.computes_s = staticmethod(make), waits_s, computes_s
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
