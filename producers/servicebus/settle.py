"""Settles messages that a receiver has locked, in the order of the requests."""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from azure.servicebus import exceptions as sdk_errors

from producers.servicebus.in_flight import InFlight
from producers.servicebus.locks import MAX_BATCH, MessageLocks, SessionOver
from producers.servicebus.message import Delivery, Holder
from producers.servicebus.sdk import client as sdk
from producers.servicebus.sdk.calls import Calls

if TYPE_CHECKING:
    from azure.servicebus.aio import ServiceBusReceiver

logger = logging.getLogger(__name__)


class Settlement(Enum):
    """The ways to settle a message."""

    COMPLETE = "complete"
    ABANDON = "abandon"
    RELEASE = "release"
    DEAD_LETTER = "dead-letter"


@dataclass(slots=True, eq=False)
class Order:
    """A request to settle a message. `done` is called once, in the SDK's thread: it is settled, or cannot be."""

    delivery: Delivery
    settlement: Settlement
    done: Callable[[], None]
    delay_s: float = 0.0
    reason: str = ""
    description: str = ""


class Settler:
    """Carries out the orders of one receiver's owner.

    Args:
        holder: The owner.
        in_flight: Records finished messages, and messages that come again.
        delay_session: Called with the delay after a message of the session failed; the session is then closed. None:
            there is no session.
    """

    def __init__(
        self,
        calls: Calls,
        locks: MessageLocks,
        holder: Holder,
        in_flight: InFlight,
        delay_session: Callable[[float], None] | None,
    ) -> None:
        self._calls = calls
        self._locks = locks
        self._holder = holder
        self._in_flight = in_flight
        self._delay_session = delay_session
        self._is_given_back = False
        """Whether a message of the session failed. Then the later messages of the session are delivered again after it,
        even to watchers that had them.
        """
        self._orders: deque[Order] = deque()

    def __bool__(self) -> bool:
        return bool(self._orders)

    def add(self, orders: Iterable[Order]) -> None:
        self._orders.extend(orders)

    def answer_all(self) -> None:
        """Answer all orders without settling: the locks have ended, or other receivers have them."""
        orders, self._orders = self._orders, deque()
        for order in orders:
            self.answer(order, is_settled=False)

    def answer_unlocked(self) -> None:
        """Answer the orders of messages that are no longer locked."""
        for order in [one for one in self._orders if self._locks.of(one.delivery) is None]:
            self._orders.remove(order)
            self.answer(order, is_settled=False)

    def answer(self, order: Order, *, is_settled: bool) -> None:
        """Answer an order that was carried out, or that cannot be carried out.

        In the second case the message comes again; if it has already come again on another link, that link gets the
        order.
        """
        if not is_settled and order.delivery.link is not self._holder:
            order.delivery.link.leave([order])
            return
        gives_back = order.settlement in (Settlement.ABANDON, Settlement.RELEASE)
        if gives_back and self._delay_session is not None:
            self._is_given_back = True
            self._in_flight.forget_locked_by(self._holder)
        elif order.settlement is Settlement.COMPLETE:
            if is_settled or not self._is_given_back:
                self._in_flight.mark_done(order.delivery, is_completed=is_settled)
            else:
                self._in_flight.forget(order.delivery)
        order.done()

    async def settle(self, receiver: ServiceBusReceiver) -> None:
        """Carry out all orders.

        Raises:
            SessionOver: The session must be closed.
            BrokerUnavailable, BrokerRefused: The receiver broke; the remaining orders stay.
        """
        while self._orders:
            together = self._completions(receiver)
            if together:
                await self._complete(receiver, together)
                continue
            order, is_settled = self._orders[0], False
            if order.delivery.link is not self._holder:
                self._orders.popleft()
                self.answer(order, is_settled=False)
                continue
            if order.delay_s > 0 and self._locks.may_delay:
                self._put_off(order)
            else:
                is_settled = await self._settle_one(receiver, order)
            self._orders.popleft()
            self.answer(order, is_settled=is_settled)

    def _completions(self, receiver: ServiceBusReceiver) -> list[Order]:
        """Return the completions at the head of the orders that one request can make."""
        together: list[Order] = []
        for order in itertools.islice(self._orders, MAX_BATCH):
            if (
                order.settlement is not Settlement.COMPLETE
                or self._locks.of(order.delivery) is None
                or not sdk.came_on(receiver, order.delivery.received)
            ):
                break
            together.append(order)
        return together

    async def _complete(self, receiver: ServiceBusReceiver, orders: list[Order]) -> None:
        errors = await self._calls(
            sdk.complete(receiver, [order.delivery.received for order in orders])
        )
        for order, error in zip(orders, errors, strict=True):
            self._orders.popleft()
            locked = self._locks.of(order.delivery)
            if locked is not None:
                if error is None:
                    self._locks.forget(locked)
                else:
                    logger.info("%s: %s", self._calls.what, error)
                    self._locks.lose(locked)
            self.answer(order, is_settled=error is None)

    def _put_off(self, order: Order) -> None:
        """Keep the lock, and repeat the order after its delay."""
        locked = self._locks.of(order.delivery)
        if locked is not None:
            later = replace(order, delay_s=0.0, done=_nothing)
            self._locks.delay(locked, order.delay_s, lambda: self._orders.append(later))

    async def _settle_one(self, receiver: ServiceBusReceiver, order: Order) -> bool:
        """Carry out an order; return whether that was possible."""
        locked = self._locks.of(order.delivery)
        if locked is None:
            return False
        received = order.delivery.received
        try:
            match order.settlement:
                case Settlement.COMPLETE:
                    await self._calls(receiver.complete_message(received))
                case Settlement.ABANDON:
                    await self._calls(receiver.abandon_message(received))
                case Settlement.DEAD_LETTER:
                    await self._calls(
                        receiver.dead_letter_message(
                            received, reason=order.reason, error_description=order.description
                        )
                    )
                case Settlement.RELEASE:
                    await self._calls(sdk.release(receiver, [received]))
        except (sdk_errors.MessageLockLostError, sdk_errors.MessageAlreadySettled):
            self._locks.lose(locked)
            return False
        except sdk_errors.SessionLockLostError as error:
            raise SessionOver("its lock is lost") from error
        self._locks.forget(locked)
        if self._delay_session is not None and order.settlement in (
            Settlement.ABANDON,
            Settlement.RELEASE,
        ):
            # The later messages of the session must come after the failed message. So all of them are given back, and
            # come again in order.
            self._delay_session(order.delay_s)
            raise SessionOver("a message of it failed")
        return True


def _nothing() -> None:
    """Do nothing: the caller was answered before, or no caller waits."""
