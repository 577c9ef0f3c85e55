"""A shared stream's producer on an SQS queue."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, ClassVar, Final

import anyio
from anyio import to_thread

from producers.sqs.message import Delivery
from producers.sqs.queue import name_of
from producers.sqs.received import ReceivedMessages
from triggerer.abc import AdvanceItem, BrokerMessage, ReportAdvanced, SharedStreamProducer
from triggerer.errors import BrokerUnavailable
from triggerer.pluginkit.dumping import dump_message, load_message

if TYPE_CHECKING:
    from producers.sqs.settings import SqsSettings
    from producers.sqs.stream import OpenStream

_GIVE_BACK_TIMEOUT_S: Final = 5.0


class SqsSharedStreamProducer(SharedStreamProducer):
    """Reads a queue. A lane is a message group of a FIFO queue, and each message of another queue.

    - `run` has the receivers and the renewals: a message stays invisible to others until it is advanced, however long
      that takes (the service's limit is 12 hours).
    - `advance` deletes what is done, in requests for all lanes that advance at the same time. A failed message becomes
      visible again after a growing delay, and with it what was received behind it in its group: order is kept, and
      other groups go on. The service counts deliveries, so counts survive restarts.
    - After `max_deliveries` failures, or as many as the queue's redrive policy allows, it goes to the dead-letter
      queue, with the reason in its attributes. So does what is rejected; where there is no such queue it is logged.
    - At the end, polls that are open are waited for, and then everything that is held is given back.
    """

    lanes_advance_side_by_side: ClassVar[bool] = True
    pauses_lanes: ClassVar[bool] = True

    def __init__(self, queue: str, *, settings: SqsSettings) -> None:
        self._name = queue
        self._settings = settings
        self._received = ReceivedMessages()
        self._open: OpenStream | None = None
        self._is_open = anyio.Event()
        self._stack = AsyncExitStack()

    async def open_stream(self) -> AsyncIterator[tuple[BrokerMessage, Delivery]]:
        """Yield messages; in order within each message group.

        Raises:
            BrokerUnavailable: The service does not answer. A new stream may succeed.
            BrokerRefused: There is no such queue, or this identity may not read it.
        """
        # The SDK takes a third of a second to import.
        stream = await to_thread.run_sync(importlib.import_module, "producers.sqs.stream")
        self._open = await self._stack.enter_async_context(
            stream.open_queue(self._name, self._settings, self._received)
        )
        self._is_open.set()
        while True:
            delivery = await self._received.get()
            yield delivery.message, delivery

    async def run(self) -> None:
        """Receive and renew.

        Raises:
            BrokerUnavailable: The service has not answered for `unavailable_after_s`.
            BrokerRefused: The queue is gone, or this identity may not receive from it.
        Cancellation: Takes effect when the polls that are open are answered, which may take `receive_wait_s`.
        """
        await self._is_open.wait()
        assert self._open is not None
        await self._open.run()

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """See `advance_lanes`."""
        await self.advance_lanes([batch])

    async def advance_lanes(
        self, batches: Sequence[Sequence[AdvanceItem]], report: ReportAdvanced = lambda _: None
    ) -> None:
        """Delete messages, or have those that failed delivered again. Returns when the service has answered.

        Lanes whose requests are answered are reported while others' are not, or have to be repeated.

        Raises:
            BrokerUnavailable: One could not be deleted for `unavailable_after_s`.
            BrokerRefused: This identity may delete nothing.

        Cancellation: What is to be deleted may be or not; what is not comes again, under the same key.
        """
        if self._open is not None:
            await self._open.settler.advance(batches, report)

    def get_advance_lane(self, broker_payload: Delivery) -> str:
        return broker_payload.lane

    def get_idempotency_key(self, broker_payload: Delivery) -> str:
        """`<queue>/<message id>`.

        The service makes the ids, and gives none twice: a queue that is deleted and made again has others. What is sent
        twice has two, unless a FIFO queue drops the second (its deduplication looks five minutes back).
        """
        return f"{name_of(self._name)}/{broker_payload.id}"

    def dead_letters_rejected(self, broker_payload: Delivery) -> bool:
        """Whether the connection or the queue's redrive policy names a dead-letter queue, and it takes messages."""
        return self._open is not None and self._open.dead_letters.take

    def get_size(self, broker_payload: Delivery) -> int:
        """The length of body and attributes."""
        return broker_payload.size

    def dump_event(self, event: BrokerMessage) -> bytes:
        return dump_message(event)

    def load_event(self, data: bytes) -> BrokerMessage:
        """The message again.

        Raises:
            ValueError: These are no bytes of `dump_event`.
        """
        return load_message(data)

    async def dead_letter(self, event: BrokerMessage, reason: str) -> None:
        """Send a message to the dead-letter queue, with the reason in its attributes.

        Raises:
            BrokerRefused: There is none, or it does not take the message.
            BrokerUnavailable: It cannot be reached.
        """
        if self._open is None:
            raise BrokerUnavailable(f"the stream of queue {name_of(self._name)!r} is not open")
        await self._open.dead_letters.write(event, {"reason": reason})

    async def pause(self) -> None:
        """Begin no further poll, and yield nothing; what is held stays so."""
        self._received.pause()
        if self._open is not None:
            self._open.receiving.pause()

    async def resume(self) -> None:
        self._received.resume()
        if self._open is not None:
            self._open.receiving.resume()

    async def pause_lane(self, lane: Hashable) -> None:
        """Yield nothing more of a group. The service gives no more of it while some of it is held."""
        self._received.pause_lane(lane)

    async def resume_lane(self, lane: Hashable) -> None:
        self._received.resume_lane(lane)

    async def aclose(self) -> None:
        """Give back what is held, and close the connections."""
        try:
            if self._open is not None:
                with anyio.move_on_after(_GIVE_BACK_TIMEOUT_S):
                    await self._open.visibility.give_back_all()
        finally:
            await self._stack.aclose()
