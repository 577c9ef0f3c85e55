"""The producer of Service Bus without its receivers: which of the received messages it yields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest

from producers.servicebus import ServiceBusSharedStreamProducer
from producers.servicebus import producer as producer_module
from producers.servicebus.entity import EntityPath
from producers.servicebus.message import Delivery
from producers.servicebus.settings import ServiceBusSettings
from triggerer.abc import AdvanceItem, BrokerMessage
from triggerer.testing.conformance.driver import FAILED


class Session:
    """A link that has accepted a session. It never carries its settle requests out."""

    is_session = True
    is_given_back = False

    def add_settle_requests(self, requests: Sequence[Any]) -> None:
        pass

    def lose(self, delivery: Delivery) -> None:
        raise AssertionError(delivery)

    def deliveries(self, *numbers: int) -> list[Delivery]:
        received: Any = None
        return [
            Delivery(BrokerMessage(b""), received, self, f"q/{n}@0", ("session", "one"), n, 1)
            for n in numbers
        ]


class Receivers:
    """A double of `Stream`, whose messages come from the test."""

    what = "stream of orders"

    def __init__(
        self, _: EntityPath, __: ServiceBusSettings, hand_over: Callable[[Sequence[Delivery]], None]
    ) -> None:
        self.hand_over = hand_over

    async def run(self) -> None:
        await anyio.sleep_forever()

    def set_paused(self, paused: bool) -> None:
        pass

    def set_lane_paused(self, lane: Any, paused: bool) -> None:
        pass


@pytest.mark.parametrize("pauses_lane", [False, True])
async def test_a_message_that_waits_while_an_earlier_one_of_its_session_fails_is_yielded_only_after_it(
    monkeypatch: pytest.MonkeyPatch, pauses_lane: bool
) -> None:
    made: list[Receivers] = []

    def make_receivers(*arguments: Any) -> Receivers:
        made.append(Receivers(*arguments))
        return made[0]

    monkeypatch.setattr(producer_module, "Stream", make_receivers)
    producer = ServiceBusSharedStreamProducer(
        EntityPath("orders"), settings=ServiceBusSettings(fully_qualified_namespace="example.test")
    )
    (receivers,) = made
    failed, *waiting = Session().deliveries(0, 1, 2)
    again = Session().deliveries(0, 1, 2)
    yielded: list[Delivery] = []
    has_yielded = anyio.Event()

    async def read() -> None:
        nonlocal has_yielded
        async for _, delivery in producer.open_stream():
            yielded.append(delivery)
            has_yielded.set()
            has_yielded = anyio.Event()

    async def until_yielded(count: int) -> None:
        with anyio.fail_after(5):
            while len(yielded) < count:
                await has_yielded.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        receivers.hand_over([failed])
        await until_yielded(1)
        await (producer.pause_lane(failed.lane) if pauses_lane else producer.pause())
        receivers.hand_over(waiting)
        await anyio.wait_all_tasks_blocked()
        # The advance does not return, because the session's link never settles the message.
        tasks.start_soon(producer.advance, [AdvanceItem(failed, FAILED)])
        await anyio.wait_all_tasks_blocked()
        await (producer.resume_lane(failed.lane) if pauses_lane else producer.resume())
        receivers.hand_over(again)
        await until_yielded(4)
        tasks.cancel_scope.cancel()
    await producer.aclose()
    assert yielded == [failed, *again]
