"""Invariant S11: a watcher that gets one message of a stream gets all later ones, until the watcher is deleted."""

from __future__ import annotations

from triggerer.domain.events import Fence
from triggerer.testing.simulation.checks.checker import Checker
from triggerer.testing.simulation.kernel.delivery import Consumer, Delivery, Message


class Owner:
    fence = Fence("orders", "a", 1)
    is_alive = True
    is_over = False


def broadcast(checker: Checker, offset: int, *watchers: int) -> None:
    message = Message("orders", 0, offset, "an event", 1)
    checker.check_members(
        Delivery(message, Consumer(Owner(), 1), 0, cohort=dict.fromkeys(watchers))
    )


def test_a_broadcast_without_a_watcher_of_an_earlier_cohort_is_found() -> None:
    checker = Checker()
    broadcast(checker, 0, 1, 2)
    broadcast(checker, 1, 1, 2, 3)
    assert checker.violation is None
    broadcast(checker, 2, 1, 3)
    assert checker.violation is not None
    assert str(checker.violation).endswith("is broadcast without the watchers [2]")


def test_a_deleted_watcher_need_not_see_later_messages() -> None:
    checker = Checker()
    broadcast(checker, 0, 1, 2)
    checker.deleted.add(2)
    broadcast(checker, 1, 1)
    assert checker.violation is None
