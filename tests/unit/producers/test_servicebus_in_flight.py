"""Messages in flight of a stream of Service Bus, and the link that settles them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from producers.servicebus import in_flight as in_flight_module
from producers.servicebus import link as link_module
from producers.servicebus.in_flight import InFlight
from producers.servicebus.link import Link
from producers.servicebus.locks import SessionOver
from producers.servicebus.message import Delivery
from producers.servicebus.settle import Settlement, SettleRequest
from triggerer.abc import BrokerMessage


class Elsewhere:
    """Another holder of a message, which records the settle requests that it gets."""

    is_session = False
    is_given_back = False

    def __init__(self) -> None:
        self.orders: list[Any] = []

    def add_settle_requests(self, orders: Sequence[Any]) -> None:
        self.orders += orders

    def lose(self, delivery: Delivery) -> None:
        raise AssertionError(delivery)


def delivery_by(link: Any, number: int = 1) -> Delivery:
    received: Any = None
    return Delivery(
        BrokerMessage(b""), received, link, f"q/{number}@0", ("message", number), number, 1
    )


def make_link(
    session_id: str | None = None,
    known: InFlight | None = None,
    hand_over: Callable[[Sequence[Delivery]], None] = lambda _: None,
) -> tuple[Link, InFlight]:
    known = known or InFlight()
    stream: Any = SimpleNamespace(
        calls=SimpleNamespace(what="stream of q"),
        entity=None,
        in_flight=known,
        paused=False,
        room=100,
        mark_settled=lambda _: None,
        count_redelivered=lambda _: None,
        hand_over=hand_over,
        delay_session=lambda *_: None,
        session_idle_s=lambda: 60.0,
    )
    return Link(stream, lambda: None, session_id=session_id), known


async def test_an_order_follows_its_message_to_whoever_holds_it_now() -> None:
    (link, known), elsewhere = make_link(), Elsewhere()
    delivery = delivery_by(link)
    known.add(delivery)
    order = SettleRequest(delivery, Settlement.COMPLETE, lambda: None)
    # The message comes again to another holder before the link receives the order to settle it.
    delivery.come_again(delivery_by(elsewhere))
    link.add_settle_requests([order])
    assert elsewhere.orders == [order]
    # An order that the link can no longer carry out also goes to the message's new holder.
    link.add_settle_requests(
        [other := SettleRequest(delivery_by(link, 2), Settlement.COMPLETE, lambda: None)]
    )
    other.delivery.come_again(delivery_by(elsewhere, 2))
    link.drop_all()
    assert elsewhere.orders == [order, other]


@pytest.mark.parametrize(
    ("settlement", "is_done"), [(Settlement.COMPLETE, True), (Settlement.ABANDON, False)]
)
async def test_what_was_done_when_its_lock_was_lost_is_known_and_what_failed_is_given_again(
    settlement: Settlement, is_done: bool
) -> None:
    link, known = make_link()
    delivery, answered = delivery_by(link), list[str]()
    known.add(delivery)
    assert known.find(delivery.key) is delivery
    link.add_settle_requests([SettleRequest(delivery, settlement, lambda: answered.append("done"))])
    link.drop_all()
    assert answered == ["done"]
    assert known.find(delivery.key) is None
    assert known.is_done(delivery.key) is is_done


async def test_what_is_behind_a_failed_message_of_a_session_is_given_again_behind_it() -> None:
    link, known = make_link("one")
    failed, done, open_ = (delivery_by(link, number) for number in (1, 2, 3))
    for delivery in (failed, done, open_):
        known.add(delivery)
    link.add_settle_requests([SettleRequest(failed, Settlement.ABANDON, lambda: None)])
    link.add_settle_requests([SettleRequest(done, Settlement.COMPLETE, lambda: None)])
    link.closed = True
    link.drop_all()
    assert known.find(open_.key) is None
    # The watchers resolve `open_` only now. The link is closed, so the broker delivers the message again.
    link.add_settle_requests([SettleRequest(open_, Settlement.COMPLETE, lambda: None)])
    for delivery in (failed, done, open_):
        assert known.find(delivery.key) is None
        assert not known.is_done(delivery.key)


def test_what_was_done_is_remembered_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight_module, "_REMEMBERED", 2)
    known, link = InFlight(), Elsewhere()
    first, second, third = (delivery_by(link, number) for number in (1, 2, 3))
    for delivery in (first, second, third):
        known.mark_done(delivery, is_completed=False)
    assert [known.is_done(one.key) for one in (first, second, third)] == [False, True, True]
    known.mark_done(third, is_completed=True)
    assert not known.is_done(third.key)


class Broker:
    """A double of `sdk.client`, which delivers some messages once."""

    def __init__(self, *messages: Any) -> None:
        self.messages = list(messages)
        self.has_delivered = anyio.Event()

    async def listen(self, *_: Any, **__: Any) -> list[Any]:
        if not self.messages:
            self.has_delivered.set()
            await anyio.sleep_forever()
        messages, self.messages = self.messages, []
        return messages

    receiver: Any = SimpleNamespace(
        session=SimpleNamespace(locked_until_utc=datetime.now(UTC) + timedelta(days=1))
    )


@pytest.mark.parametrize("is_given_back", [False, True])
async def test_a_message_that_comes_again_is_handed_over_again_if_its_session_was_given_back(
    monkeypatch: pytest.MonkeyPatch, is_given_back: bool
) -> None:
    handed_over: list[Delivery] = []
    link, known = make_link("one")
    later, _ = make_link("one", known, handed_over.extend)
    before, again = delivery_by(link), delivery_by(later)
    known.add(before)
    # `link` has lost the session. If `is_given_back`, a message failed before, and `link` was asked to give the session
    # back.
    link.is_given_back = is_given_back
    monkeypatch.setattr(link_module, "sdk", broker := Broker(again))
    monkeypatch.setattr(link_module, "delivery_of", lambda delivery, *_: delivery)
    monkeypatch.setattr(again, "received", SimpleNamespace(locked_until_utc=None))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(later.serve, broker.receiver)
        with anyio.fail_after(5):
            await broker.has_delivered.wait()
        tasks.cancel_scope.cancel()
    assert handed_over == ([again] if is_given_back else [])
    assert known.find(before.key) is (again if is_given_back else before)
    assert before.link is (link if is_given_back else later)


async def test_a_session_whose_message_fails_is_closed_even_if_that_message_has_no_lock() -> None:
    link, _ = make_link("one")
    link.add_settle_requests([SettleRequest(delivery_by(link), Settlement.ABANDON, lambda: None)])
    with pytest.raises(SessionOver), anyio.fail_after(5):
        await link.serve(Broker.receiver)
