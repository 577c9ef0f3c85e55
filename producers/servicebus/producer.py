"""The producer of a shared stream that reads a queue or a subscription of Service Bus."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import anyio

from producers.servicebus.dead_letter import send_to
from producers.servicebus.message import Delivery, Holder, Lane
from producers.servicebus.sdk.settled_lanes import SettledLanes
from producers.servicebus.sdk.thread import THREAD, Work, join
from producers.servicebus.settle import Settlement, SettleRequest
from producers.servicebus.stream import Stream
from triggerer.abc import AdvanceItem, BrokerMessage, ReportAdvanced, SharedStreamProducer
from triggerer.errors import BrokerRefused, BrokerUnavailable
from triggerer.pluginkit.delivery import Judgement, judge
from triggerer.pluginkit.dumping import dump_message, get_size, load_message
from triggerer.pluginkit.reporting import reporting

if TYPE_CHECKING:
    from producers.servicebus.entity import EntityPath
    from producers.servicebus.settings import ServiceBusSettings

logger = logging.getLogger(__name__)

_TURN_EVERY = 100


class ServiceBusSharedStreamProducer(SharedStreamProducer):
    """Receives with peek-lock. The event is a `BrokerMessage`, its broker payload a `Delivery`.

    - A lane is a session; a message without one has its own lane.
    - `advance` returns when Service Bus has recorded the outcome. A message whose lock was lost meanwhile counts as
      settled. It comes again, and its key keeps its events from being stored twice.
    - A failed message without a session keeps its lock during a growing delay, and is then abandoned and comes again.
    - A failed message of a session is abandoned at once, and the session is closed. During a growing delay, this stream
      delivers no message of the session.
    - A message that was rejected, or that fails on delivery number `max_deliveries` or later, is dead-lettered with the
      reason. If the entity is itself a dead-letter queue, failed messages come again, and the runtime parks rejected
      messages.
    - Locks are renewed in a separate thread until a message is settled.
    - At the end, messages in flight are given back without a counted delivery.
    """

    lanes_advance_side_by_side: ClassVar[bool] = True
    pauses_lanes: ClassVar[bool] = True

    def __init__(self, entity: EntityPath, *, settings: ServiceBusSettings) -> None:
        self._entity = entity
        self._settings = settings
        self._policy = settings.delivery_policy()
        self._stream = Stream(entity, settings, self._receive)
        self._running: Work[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrived: deque[Delivery] = deque()
        self._opened = asyncio.Event()
        self._something = asyncio.Event()
        self._paused = False
        self._by_paused_lane: dict[Hashable, deque[Delivery]] = {}

    # Receiving

    async def open_stream(self) -> AsyncIterator[tuple[BrokerMessage, Delivery]]:
        """Yield messages, in order within each session.

        Raises:
            ConfigurationError: The settings do not allow this entity: see `ServiceBusSettings.check_entity`.
            BrokerRefused: The entity does not exist, or this client is not allowed to read it.
            BrokerUnavailable: The first attempt to reach Service Bus failed. Or, later, all attempts failed for longer
                than `connect_timeout_s`.
        """
        self._start()
        yielded = 0
        while True:
            delivery = self._next()
            if delivery is None:
                self._raise_if_ended()
                self._something.clear()
                await self._something.wait()
                continue
            yielded += 1
            if yielded % _TURN_EVERY == 0:
                await anyio.lowlevel.checkpoint()
            yield delivery.message, delivery

    def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        THREAD.acquire()
        self._running = THREAD.start(self._stream.run())
        self._opened.set()
        self._running.outcome.add_done_callback(lambda _: self._notify())

    def _receive(self, deliveries: Sequence[Delivery]) -> None:
        """Queue received messages; called in the SDK's thread."""
        self._arrived.extend(deliveries)
        self._notify()

    def _notify(self) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._something.set)

    def _next(self) -> Delivery | None:
        while self._arrived and not self._paused:
            delivery = self._arrived.popleft()
            if delivery.link.is_given_back:
                # This message comes again after the failed message of its session.
                continue
            waiting = self._by_paused_lane.get(delivery.lane)
            if waiting is None:
                return delivery
            waiting.append(delivery)
        return None

    def _raise_if_ended(self) -> None:
        if self._running is not None and self._running.outcome.done():
            self._running.outcome.result()
            raise BrokerUnavailable(f"{self._stream.what} ended")

    async def run(self) -> None:
        """Wait until the receivers in the SDK's thread end, and raise the error that ended them.

        The error then ends the group at once, even while the stream is paused and nothing iterates `open_stream`.
        """
        await self._opened.wait()
        assert self._running is not None
        await self._running.ended()
        self._raise_if_ended()

    # Settling

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """See `advance_lanes`."""
        await self.advance_lanes([batch])

    async def advance_lanes(
        self, batches: Sequence[Sequence[AdvanceItem]], report: ReportAdvanced = lambda _: None
    ) -> None:
        """Complete, abandon or dead-letter messages.

        After a failed message, the later messages of its session come again. Each lane is reported as soon as its own
        messages are settled.

        Cancellation: Each message may have been settled or not; if not, it comes again.
        """
        settled_lanes = SettledLanes(batches)
        by_link: dict[Holder, list[SettleRequest]] = {}
        for place, batch in enumerate(batches):
            done = partial(settled_lanes.mark_settled, place)
            for item in batch:
                request = self._request_for(item, done)
                link = request.delivery.link
                if request.gives_back and link.is_session:
                    # Yield no later message of the session. The SDK's thread carries the request out only later.
                    link.is_given_back = True
                by_link.setdefault(link, []).append(request)
        for link, requests in by_link.items():
            THREAD.call(partial(link.add_settle_requests, requests))
        with reporting(report, settled_lanes.take_settled):
            await settled_lanes.wait()

    def _request_for(self, item: AdvanceItem, done: Callable[[], None]) -> SettleRequest:
        delivery, outcome = item
        assert isinstance(delivery, Delivery)
        match judge(outcome):
            case Judgement.ACK:
                return SettleRequest(delivery, Settlement.COMPLETE, done)
            case Judgement.REJECT if self._entity.is_dead_letter_queue:
                logger.warning(
                    "%s: message rejected, and skipped: %s", self._stream.what, delivery.key
                )
                return SettleRequest(delivery, Settlement.COMPLETE, done)
            case Judgement.REJECT:
                return SettleRequest(
                    delivery, Settlement.DEAD_LETTER, done, reason="Rejected",
                    description=f"rejected by {outcome.rejected} of the watchers, accepted by {outcome.acked}",
                )  # fmt: skip
        deliveries = delivery.deliveries
        if not outcome.blames_event:
            # No watcher processed the message, so release it. A release does not count as a delivery.
            return SettleRequest(delivery, Settlement.RELEASE, done, delay_s=self._policy.delay(1))
        if self._policy.is_exhausted(deliveries) and not self._entity.is_dead_letter_queue:
            return SettleRequest(
                delivery, Settlement.DEAD_LETTER, done, reason="MaxDeliveriesExceeded",
                description=f"delivered {deliveries} times; at last {outcome.failed} of the watchers failed",
            )  # fmt: skip
        return SettleRequest(
            delivery, Settlement.ABANDON, done, delay_s=self._policy.delay(deliveries)
        )

    def get_advance_lane(self, broker_payload: Delivery) -> Lane:
        return broker_payload.lane

    def get_idempotency_key(self, broker_payload: Delivery) -> str:
        """Return `<entity>/<sequence number>@<time at which Service Bus stored the message, in ms>`."""
        return broker_payload.key

    def dead_letters_rejected(self, broker_payload: Delivery) -> bool:
        """Whether the entity has a dead-letter queue. Every entity has one, except a dead-letter queue itself."""
        return not self._entity.is_dead_letter_queue

    def get_size(self, broker_payload: Delivery) -> int:
        """Return the bytes of body, session and properties."""
        return get_size(broker_payload.message)

    # Storing messages

    def dump_event(self, event: BrokerMessage) -> bytes:
        return dump_message(event)

    def load_event(self, data: bytes) -> BrokerMessage:
        """Return the message; it has no lock.

        Raises:
            ValueError: `dump_event` did not write these bytes.
        """
        return load_message(data)

    async def dead_letter(self, event: BrokerMessage, reason: str) -> None:
        """Dead-letter a message that this stream has locked, or else send a copy to `dead_letter_queue`.

        Service Bus itself dead-letters only a locked message, and never a message of a dead-letter queue.

        Raises:
            BrokerRefused: There is no `dead_letter_queue`, or Service Bus refused the copy.
            BrokerUnavailable: The lock is lost, so the message is delivered again. Or it is unknown
                whether the copy was sent.
        """
        delivery = self._find(event)
        if delivery is not None and not self._entity.is_dead_letter_queue:
            settled = asyncio.Event()
            request = SettleRequest(
                delivery,
                Settlement.DEAD_LETTER,
                partial(_set_from_elsewhere, asyncio.get_running_loop(), settled),
                reason="SetAside",
                description=reason,
            )
            THREAD.call(partial(delivery.link.add_settle_requests, [request]))
            await settled.wait()
            if not request.is_settled:
                raise BrokerUnavailable(
                    f"{self._stream.what}: a message was not dead-lettered, because its lock was lost"
                )
            return
        if self._settings.dead_letter_queue is None:
            raise BrokerRefused(
                f"{self._stream.what}: a message that is no longer locked cannot be dead-lettered",
                hint="name a queue for such messages: dead_letter_queue in the connection",
            )
        THREAD.acquire()
        try:
            await join(THREAD.start(send_to(self._settings, event, reason)))
        finally:
            await THREAD.release()

    def _find(self, event: BrokerMessage) -> Delivery | None:
        number, published = event.position.get("sequence_number"), event.published_at
        if not isinstance(number, int) or published is None:
            return None
        key = f"{self._entity}/{number}@{int(published.timestamp() * 1000)}"
        return self._stream.find(number, key)

    # Pausing

    async def pause(self) -> None:
        """Stop receiving messages. Messages in flight stay locked, and their locks are renewed."""
        self._paused = True
        THREAD.call(partial(self._stream.set_paused, True))

    async def resume(self) -> None:
        self._paused = False
        THREAD.call(partial(self._stream.set_paused, False))
        self._something.set()

    async def pause_lane(self, lane: Hashable) -> None:
        """Stop receiving messages of a session; other sessions continue."""
        self._by_paused_lane.setdefault(lane, deque())
        THREAD.call(partial(self._stream.set_lane_paused, lane, True))

    async def resume_lane(self, lane: Hashable) -> None:
        waiting = self._by_paused_lane.pop(lane, None)
        if waiting is not None:
            self._arrived.extendleft(reversed(waiting))
        THREAD.call(partial(self._stream.set_lane_paused, lane, False))
        self._something.set()

    # The end

    async def aclose(self) -> None:
        """Give back the messages in flight, and disconnect."""
        if self._running is None:
            return
        try:
            self._running.cancel()
            await self._running.ended()
        finally:
            await THREAD.release()


def _set_from_elsewhere(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(event.set)
