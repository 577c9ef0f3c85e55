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
class SettleRequest:
    """A request to settle a message.

    `done` is called once, in the SDK's thread: when the message is settled or cannot be settled. If the message waits
    for a redelivery, `done` is called before the wait.

    Attributes:
        is_settled: Set before `done` is called. False: the message is no longer locked, and comes again.
    """

    delivery: Delivery
    settlement: Settlement
    done: Callable[[], None]
    delay_s: float = 0.0
    reason: str = ""
    description: str = ""
    is_settled: bool = False

    @property
    def gives_back(self) -> bool:
        """True if the message comes again after it was settled."""
        return self.settlement in (Settlement.ABANDON, Settlement.RELEASE)


class Settler:
    """Carries out the requests to settle messages of one receiver.

    Args:
        holder: The receiver's `Link`, which has the messages' locks.
        in_flight: The stream's messages in flight, updated when a message is finished or given back.
        delay_session: Called with the delay of the redelivery when a failed message closes the session. None: there is
            no session.
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
        """True once a message of the session was given back. The session's later messages then come again too, even if
        watchers have processed them.
        """
        self._requests: deque[SettleRequest] = deque()

    def __bool__(self) -> bool:
        return bool(self._requests)

    def add(self, requests: Iterable[SettleRequest]) -> None:
        self._requests.extend(requests)

    def finish_all(self) -> None:
        """Finish all requests without settling: the locks have ended, or other receivers have them."""
        requests, self._requests = self._requests, deque()
        for request in requests:
            self.finish(request, is_settled=False)

    def finish_unlocked(self) -> None:
        """Finish the requests for messages that are no longer locked, without settling."""
        for request in [one for one in self._requests if self._locks.of(one.delivery) is None]:
            self._requests.remove(request)
            self.finish(request, is_settled=False)

    def finish(self, request: SettleRequest, *, is_settled: bool) -> None:
        """Record whether the request's message was settled, and call `done`.

        A message that was not settled comes again. If another link has already received the message, this method passes
        the request to that link, and does not call `done`.
        """
        if not is_settled and request.delivery.link is not self._holder:
            request.delivery.link.add_settle_requests([request])
            return
        if request.gives_back and self._delay_session is not None:
            self._is_given_back = True
            self._in_flight.forget_locked_by(self._holder)
        elif request.settlement is Settlement.COMPLETE:
            if is_settled or not self._is_given_back:
                self._in_flight.mark_done(request.delivery, is_completed=is_settled)
            else:
                self._in_flight.forget(request.delivery)
        request.is_settled = is_settled
        request.done()

    async def settle(self, receiver: ServiceBusReceiver) -> None:
        """Carry out all requests.

        Raises:
            SessionOver: The session must be closed.
            BrokerUnavailable, BrokerRefused: The receiver broke; the remaining requests stay.
        """
        while self._requests:
            together = self._completions(receiver)
            if together:
                await self._complete(receiver, together)
                continue
            request, is_settled = self._requests[0], False
            if request.delivery.link is not self._holder:
                self._requests.popleft()
                self.finish(request, is_settled=False)
                continue
            if request.delay_s > 0 and self._locks.may_delay:
                self._put_off(request)
            else:
                is_settled = await self._settle_one(receiver, request)
            self._requests.popleft()
            self.finish(request, is_settled=is_settled)
            if request.gives_back and self._delay_session is not None:
                # The later messages of the session must come after the failed message. So all of them are given back,
                # and come again in order.
                self._delay_session(request.delay_s)
                raise SessionOver("one of its messages failed")

    def _completions(self, receiver: ServiceBusReceiver) -> list[SettleRequest]:
        """Return the requests at the head of the queue that one call to Service Bus can complete together."""
        together: list[SettleRequest] = []
        for request in itertools.islice(self._requests, MAX_BATCH):
            if (
                request.settlement is not Settlement.COMPLETE
                or self._locks.of(request.delivery) is None
                or not sdk.came_on(receiver, request.delivery.received)
            ):
                break
            together.append(request)
        return together

    async def _complete(self, receiver: ServiceBusReceiver, requests: list[SettleRequest]) -> None:
        errors = await self._calls(
            sdk.complete(receiver, [request.delivery.received for request in requests])
        )
        for request, error in zip(requests, errors, strict=True):
            self._requests.popleft()
            locked = self._locks.of(request.delivery)
            if locked is not None:
                if error is None:
                    self._locks.forget(locked)
                else:
                    logger.info("%s: %s", self._calls.what, error)
                    self._locks.lose(locked)
            self.finish(request, is_settled=error is None)

    def _put_off(self, request: SettleRequest) -> None:
        """Keep the message's lock, and carry the request out after its delay."""
        locked = self._locks.of(request.delivery)
        if locked is not None:
            later = replace(request, delay_s=0.0, done=_nothing)
            self._locks.delay(locked, request.delay_s, lambda: self._requests.append(later))

    async def _settle_one(self, receiver: ServiceBusReceiver, request: SettleRequest) -> bool:
        """Carry out a request; return whether that was possible."""
        locked = self._locks.of(request.delivery)
        if locked is None:
            return False
        received = request.delivery.received
        try:
            match request.settlement:
                case Settlement.COMPLETE:
                    await self._calls(receiver.complete_message(received))
                case Settlement.ABANDON:
                    await self._calls(receiver.abandon_message(received))
                case Settlement.DEAD_LETTER:
                    await self._calls(
                        receiver.dead_letter_message(
                            received, reason=request.reason, error_description=request.description
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
        return True


def _nothing() -> None:
    """Do nothing: no caller waits, or the caller's `done` was called before."""
