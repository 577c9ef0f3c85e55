"""Messages in flight of a stream of Service Bus, and the link that settles them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from producers.servicebus import in_flight as in_flight_module
from producers.servicebus.in_flight import InFlight
from producers.servicebus.link import Link
from producers.servicebus.message import Delivery
from producers.servicebus.settle import Settlement, SettleRequest
from triggerer.abc import BrokerMessage


class Elsewhere:
    """Another holder of a message, which records the settle requests that it gets."""

    is_session = False

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


def make_link(session_id: str | None = None) -> tuple[Link, InFlight]:
    known = InFlight()
    stream: Any = SimpleNamespace(
        calls=None,
        in_flight=known,
        mark_settled=lambda _: None,
        delay_session=lambda *_: None,
    )
    return Link(stream, session_id=session_id), known


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
