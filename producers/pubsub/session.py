"""One stream's messages in flight, and the tasks that receive, lease, acknowledge and give back messages."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio import CapacityLimiter, to_thread

from producers.pubsub.dead_letter import DeadLetters
from producers.pubsub.in_flight import InFlight
from producers.pubsub.leases import Leases
from producers.pubsub.message import Delivery, State, read_delivery
from producers.pubsub.receiving import Receiving
from producers.pubsub.renewing import Renewing
from producers.pubsub.requests import split
from producers.pubsub.settle import Settler

if TYPE_CHECKING:
    from producers.pubsub.connecting import Connection
    from producers.pubsub.settings import PubSubSettings

logger = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S: Final = 5.0


class Session:
    """The parts of one producer, from its opening to its end.

    Args:
        subscription: The subscription's full path.
    """

    def __init__(
        self,
        connection: Connection,
        subscription: str,
        settings: PubSubSettings,
        dead_letters: DeadLetters,
    ) -> None:
        self.in_flight = InFlight(
            max_messages=settings.max_outstanding_messages,
            max_bytes=settings.max_outstanding_bytes,
            max_delayed=settings.max_held_messages,
        )
        self.dead_letters = dead_letters
        self._connection = connection
        self._subscription = subscription
        self._leases = Leases(
            fixed_deadline_s=settings.ack_deadline_s,
            min_deadline_s=settings.min_ack_deadline_s,
            max_extension_s=settings.max_extension_s,
        )
        client = connection.subscriber
        self._settler = Settler(client, subscription, settings)
        self._receiving = Receiving(
            client,
            subscription,
            settings,
            deadline_s=lambda: self._leases.deadline_s,
            take=self._take,
            is_full=lambda: self.in_flight.is_full,
            make_room=self.in_flight.make_room,
        )
        self._renewing = Renewing(
            self._leases,
            subscription,
            open_call=connection.open_blocking_modify,
            on_lost=self._mark_lost,
            abort_call=connection.close_blocking,
        )
        self._ready = anyio.Event()
        self._has_delayed = anyio.Event()

    # Called by the poll and by `advance`

    async def wait_for_messages(self) -> None:
        """Wait until a message may be ready."""
        await self._ready.wait()
        self._ready = anyio.Event()

    def mark_ready(self) -> None:
        self._ready.set()

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge messages, and remove them from `in_flight`; see `Settler.ack`."""
        if not deliveries:
            return
        ack_ids = [delivery.ack_id for delivery in deliveries]
        await self._settler.ack(ack_ids, self._leases.release(ack_ids, time.monotonic()))
        self.in_flight.remove_all(deliveries)
        self._receiving.signal_room()

    def redeliver_after(self, delivery: Delivery, delay_s: float) -> None:
        """Give a failed message back after a delay, and hold back the later messages of its lane."""
        self.in_flight.fail(delivery, time.monotonic(), delay_s)
        self._has_delayed.set()
        if self.in_flight.wants_room:
            self._receiving.reopen()

    def repeat(self, delivery: Delivery) -> bool:
        """Yield a message again, with the later messages of its lane; return whether that is possible."""
        is_done = self.in_flight.repeat(delivery)
        self.mark_ready()
        return is_done

    # Tasks that run while the poll runs

    async def run(self) -> None:
        """Receive messages, extend their leases, acknowledge them and give them back, until cancelled.

        Raises:
            BrokerError: The error that ends the stream.
        """
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._renew)
                tasks.start_soon(self._settler.run)
                tasks.start_soon(self._give_back)
                tasks.start_soon(self._receiving.run)
        except BaseExceptionGroup as group:
            raise first_error(group) from None

    async def _renew(self) -> None:
        async with anyio.create_task_group() as tasks:
            # Use a separate limiter. In anyio's shared limiter, this thread would occupy a place for as long as the
            # stream lives.
            tasks.start_soon(
                lambda: to_thread.run_sync(self._renewing.run, limiter=CapacityLimiter(1))
            )
            try:
                await anyio.sleep_forever()
            finally:
                self._renewing.stop()

    def _mark_lost(self, count: int, reason: str) -> None:
        # The thread that extends leases calls this method. A log line is enough: Pub/Sub delivers the messages again,
        # with new leases.
        logger.warning(
            "%s: %d leases ended while their messages were in flight: %s; the messages come again",
            self._subscription,
            count,
            reason,
        )

    async def _give_back(self) -> None:
        while True:
            at = self.in_flight.next_at()
            if at is None or at > time.monotonic():
                self._has_delayed = anyio.Event()
                with anyio.move_on_after(None if at is None else at - time.monotonic()):
                    await self._has_delayed.wait()
            due = self.in_flight.take_due(time.monotonic())
            if due:
                ack_ids = [delivery.ack_id for delivery in due]
                self._leases.release(ack_ids, time.monotonic())
                self._settler.nack_nowait(ack_ids)
                self._receiving.signal_room()
            # `take_due` also lets a lane continue if the lane has waited too long for its failed message. So wake the
            # poll, even if no message is due.
            self.mark_ready()

    def _take(self, received: Sequence[Any], deadline_s: int) -> None:
        now = time.monotonic()
        in_flight, subscription = self.in_flight, self._subscription
        deliveries = [read_delivery(one, subscription) for one in received]
        self._leases.begin([one.ack_id for one in deliveries], now, deadline_s)
        self._renewing.mark_begun()
        for known, delivery, before in in_flight.add_all(deliveries):
            self._mark_in_flight_again(known, delivery, before, now)
        self.mark_ready()

    def _mark_in_flight_again(
        self, known: Delivery, delivery: Delivery, before: str, now: float
    ) -> None:
        if before != delivery.ack_id:
            self._leases.release([before], now)
        if known.state is State.SETTLING:
            # The message came again while the request that acknowledges it was under way. The
            # request contains the previous ack id, and may have no effect. So acknowledge the new
            # id too.
            (end,) = self._leases.release([delivery.ack_id], now)
            self._settler.ack_nowait(delivery.ack_id, end)

    async def aclose(self) -> None:
        """Give back all messages in flight, so that they are delivered again at once, and disconnect."""
        try:
            with anyio.move_on_after(_CLOSE_TIMEOUT_S, shield=True):
                for part in split([delivery.ack_id for delivery in self.in_flight]):
                    await self._settler.nack(part)
        finally:
            with anyio.move_on_after(_CLOSE_TIMEOUT_S, shield=True):
                await self._connection.aclose()


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error that ended a task group: one task fails, and that cancels the others."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
