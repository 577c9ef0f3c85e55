"""A link owns one receiver of the SDK. Only the link's task receives, settles and renews locks with this receiver.

Two tasks must not share a receiver (see TROUBLESHOOTING.md of the SDK). So if another task wants to settle messages, it
passes a request to the link. The request interrupts the link's wait for messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import anyio
from azure.servicebus import exceptions as sdk_errors

from producers.servicebus.entity import EntityPath
from producers.servicebus.errors import guarded
from producers.servicebus.in_flight import InFlight
from producers.servicebus.locks import MAX_BATCH, MessageLocks, SessionLock, SessionOver
from producers.servicebus.message import Delivery, delivery_of
from producers.servicebus.sdk import client as sdk
from producers.servicebus.sdk.calls import Calls
from producers.servicebus.settle import Settlement, Settler, SettleRequest
from triggerer.errors import BrokerUnavailable

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage
    from azure.servicebus.aio import ServiceBusReceiver

_LONGEST_WAIT_S = 15.0


class LinkContext(Protocol):
    """The part of `Stream` that a link uses."""

    entity: EntityPath
    calls: Calls
    in_flight: InFlight
    paused: bool

    @property
    def room(self) -> int:
        """The number of further messages that may be received."""

    def hand_over(self, deliveries: Sequence[Delivery]) -> None:
        """Pass received messages to the producer."""

    def count_redelivered(self, count: int) -> None:
        """Count messages that came again and are not passed to the producer."""

    def mark_settled(self, count: int) -> None:
        """Count messages that are no longer in flight."""

    def session_idle_s(self) -> float:
        """How long an empty session stays open."""

    def delay_session(self, session_id: str, delay_s: float) -> None:
        """Deliver no message of a session for `delay_s`. Has no effect if another stream accepts the session next."""


class Link:
    """The owner of a receiver.

    The link of a session ends with the session. A link without a session gets a new receiver when its receiver fails.

    Args:
        record_success: Called each time after the receiver has waited for messages without an error.
    Attributes:
        paused: True: receive no messages.
        is_given_back: True once a message of the session has failed; see `Holder`.
        quiet_since: When the last message came. If a session stays empty for `session_idle_s` after this time, the
            session is closed.
        not_before: Receive no message before this time, because a message of the session has failed.
    """

    def __init__(
        self,
        stream: LinkContext,
        record_success: Callable[[], None],
        *,
        session_id: str | None = None,
    ) -> None:
        self._stream = stream
        self._record_success = record_success
        self.session_id = session_id
        self.paused = False
        self.closed = False
        self.is_given_back = False
        self.locks = MessageLocks(stream.calls, stream.mark_settled, are_renewed=session_id is None)
        self._session = None if session_id is None else SessionLock(stream.calls)
        self._settler = Settler(
            stream.calls,
            self.locks,
            self,
            stream.in_flight,
            None if session_id is None else partial(stream.delay_session, session_id),
        )
        self._wait: anyio.CancelScope | None = None
        self.quiet_since = anyio.current_time()
        self.not_before = 0.0

    @property
    def is_session(self) -> bool:
        return self.session_id is not None

    # Called by other tasks of the SDK's thread

    def add_settle_requests(self, requests: Sequence[SettleRequest]) -> None:
        """Add requests to settle messages.

        If a message's lock is lost, the message comes again. `done` of its request is called all
        the same.
        """
        for request in requests:
            if request.delivery.link is not self:
                # The message came again on another link while this request was under way, so pass the request on.
                request.delivery.link.add_settle_requests([request])
                continue
            if request.settlement is not Settlement.COMPLETE:
                self._stream.in_flight.forget(request.delivery)
            if request.gives_back and self.is_session:
                self.is_given_back = True
            if self.closed:
                self._settler.finish(request, is_settled=False)
            else:
                self._settler.add([request])
        self.poke()

    def lose(self, delivery: Delivery) -> None:
        """Drop the lock of a message that came again on another link."""
        locked = self.locks.of(delivery)
        if locked is not None:
            self.locks.lose(locked)

    def poke(self) -> None:
        """Interrupt the wait for messages."""
        if self._wait is not None:
            self._wait.cancel()

    # The owner's task

    async def serve(self, receiver: ServiceBusReceiver) -> None:
        """Receive, settle and renew, until the receiver breaks.

        Raises:
            SessionOver: The session must be closed.
            BrokerUnavailable, BrokerRefused: The receiver broke.
        """
        if self._session is not None:
            self._session.mark_renewed(receiver)
        while True:
            await self._settler.settle(receiver)
            if self._session is not None:
                await self._session.renew_if_due(receiver)
            await self.locks.do_what_is_due(receiver)
            await self._receive(receiver)

    async def _receive(self, receiver: ServiceBusReceiver) -> None:
        credit = self._credit()
        with anyio.CancelScope() as scope:
            self._wait = scope
            try:
                if self._settler:
                    return
                messages = await guarded(
                    sdk.listen(receiver, credit=credit, wait_s=self._longest_wait()),
                    self._stream.calls.what,
                    self._stream.entity,
                )
                self._record_success()
                self._take(messages)
            except BrokerUnavailable as error:
                if isinstance(error.__cause__, sdk_errors.SessionLockLostError):
                    raise SessionOver("its lock is lost") from error
                raise
            finally:
                self._wait = None
        if self.is_session:
            self._end_if_idle()

    def _credit(self) -> int:
        now = anyio.current_time()
        if self.paused or self._stream.paused or now < self.not_before:
            return 0
        return min(MAX_BATCH, self._stream.room)

    def _longest_wait(self) -> float:
        now = anyio.current_time()
        ends = [now + _LONGEST_WAIT_S]
        if (due_at := self.locks.due_at) is not None:
            ends.append(due_at)
        if self._session is not None:
            ends.append(self._session.renew_at)
            if now < self.not_before:
                ends.append(self.not_before)
            if not self.locks:
                ends.append(self.quiet_since + self._stream.session_idle_s())
        return max(0.001, min(ends) - now)

    def _take(self, messages: Sequence[ServiceBusReceivedMessage]) -> None:
        """Record the locks of received messages. Pass only new messages to the producer."""
        if not messages:
            return
        now = anyio.current_time()
        in_flight, new = self._stream.in_flight, []
        for received in messages:
            delivery = delivery_of(received, self, self._stream.entity)
            before = in_flight.find(delivery.key)
            if before is not None and not before.link.is_given_back:
                before.link.lose(before)
                before.come_again(delivery)
                self.locks.add(before, now)
                continue
            self.locks.add(delivery, now)
            if in_flight.is_done(delivery.key):
                # The message's events are stored, but the message was not completed before its lock ended. Complete it
                # now.
                self._settler.add([SettleRequest(delivery, Settlement.COMPLETE, _nothing)])
                continue
            in_flight.add(delivery)
            new.append(delivery)
        self.quiet_since = now
        self._stream.count_redelivered(len(messages) - len(new))
        self._stream.hand_over(new)

    def _end_if_idle(self) -> None:
        now = anyio.current_time()
        if self.locks or self._settler or now < self.not_before:
            return
        if self.paused or self._stream.paused:
            self.quiet_since = now
        elif now >= self.quiet_since + self._stream.session_idle_s():
            raise SessionOver("it is empty")

    # The end

    def drop_all(self) -> None:
        """Drop all locks, because they have ended or belong to other receivers, and finish all requests."""
        self.locks.forget_all()
        self._settler.finish_all()

    def drop_expired(self) -> None:
        """Drop expired locks and finish the requests for their messages, while there is no connection."""
        self.locks.lose_expired()
        self._settler.finish_unlocked()

    async def let_go(self, receiver: ServiceBusReceiver) -> None:
        """Give back the messages of this link without counting a delivery, so that other receivers get them at once.

        The messages of a session are given back together with its lock.
        """
        if not self.is_session:
            late = await sdk.drain(receiver)
            locked = [one.delivery.received for one in self.locks]
            await sdk.release(receiver, [*locked, *late])


def _nothing() -> None:
    """Do nothing: no caller waits for the request."""
