"""The producer of a shared stream that reads an SQS queue."""

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
    """Reads a queue. A lane is a message group of a FIFO queue; in other queues each message is a lane.

    - `run` receives messages and renews their visibility timeouts. A message stays invisible to other receivers until
      it is advanced, up to SQS's limit of 12 hours.
    - `advance` deletes finished messages. Lanes that advance at the same time share requests.
    - A failed message becomes visible again after a growing delay. The later messages of its group become visible a
      second later, which keeps the order. Other groups continue. SQS counts deliveries, so counts survive restarts.
    - A message goes to the dead-letter queue after `max_deliveries` failures, or after fewer if the queue's redrive
      policy says so. The reason is in the message's attributes, unless SQS itself moved the message. Rejected messages
      go to the dead-letter queue too. Without a dead-letter queue, the runtime parks rejected messages.
    - At the end, the producer waits for open polls, and then gives all messages in flight back.
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
            BrokerUnavailable: SQS does not answer. A new stream may succeed.
            BrokerRefused: There is no such queue, or this identity may not read it.
        """
        # Import the SDK in a thread, because the import takes a third of a second.
        stream = await to_thread.run_sync(importlib.import_module, "producers.sqs.stream")
        self._open = await self._stack.enter_async_context(
            stream.open_queue(self._name, self._settings, self._received)
        )
        self._is_open.set()
        while True:
            delivery = await self._received.get()
            yield delivery.message, delivery

    async def run(self) -> None:
        """Receive messages and renew their visibility timeouts, until cancelled.

        Raises:
            BrokerUnavailable: SQS has not answered for `unavailable_after_s`.
            BrokerRefused: The queue was deleted, or this identity may not receive from it.
        Cancellation: Takes effect when the open polls are answered, which can take `receive_wait_s`.
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
        """Delete finished messages and redeliver failed ones. Returns when SQS has answered.

        Each lane is reported as soon as its own requests are answered.

        Raises:
            BrokerUnavailable: A message could not be deleted for `unavailable_after_s`.
            BrokerRefused: This identity may not delete messages.

        Cancellation: A message may be deleted or not; if not, it comes again under the same key.
        """
        if self._open is not None:
            await self._open.settler.advance(batches, report)

    def get_advance_lane(self, broker_payload: Delivery) -> str:
        return broker_payload.lane

    def get_idempotency_key(self, broker_payload: Delivery) -> str:
        """Return `<queue>/<message id>`.

        SQS never repeats an id, not even in a queue that is deleted and created again. If a sender repeats a message,
        the second message has another id, and so makes another event.
        """
        return f"{name_of(self._name)}/{broker_payload.id}"

    def dead_letters_rejected(self, broker_payload: Delivery) -> bool:
        """Whether there is a dead-letter queue that has not refused a message recently."""
        return self._open is not None and self._open.dead_letters.accepts_messages

    def get_size(self, broker_payload: Delivery) -> int:
        """Return the length of body and attributes."""
        return broker_payload.size

    def dump_event(self, event: BrokerMessage) -> bytes:
        return dump_message(event)

    def load_event(self, data: bytes) -> BrokerMessage:
        """Return the message.

        Raises:
            ValueError: `dump_event` did not write these bytes.
        """
        return load_message(data)

    async def dead_letter(self, event: BrokerMessage, reason: str) -> None:
        """Send a message to the dead-letter queue, with the reason in its attributes.

        Raises:
            BrokerRefused: There is no dead-letter queue, or it refuses the message.
            BrokerUnavailable: The dead-letter queue cannot be reached.
        """
        if self._open is None:
            raise BrokerUnavailable(f"the stream of queue {name_of(self._name)!r} is not open")
        await self._open.dead_letters.write(event, {"reason": reason})

    async def pause(self) -> None:
        """Begin no further poll, and yield no message. Messages in flight stay invisible to other receivers."""
        self._received.pause()
        if self._open is not None:
            self._open.receiving.pause()

    async def resume(self) -> None:
        self._received.resume()
        if self._open is not None:
            self._open.receiving.resume()

    async def pause_lane(self, lane: Hashable) -> None:
        """Stop yielding messages of a group.

        Messages that have been received stay in memory. SQS itself delivers no further message of a group while
        messages of the group are in flight.
        """
        self._received.pause_lane(lane)

    async def resume_lane(self, lane: Hashable) -> None:
        self._received.resume_lane(lane)

    async def aclose(self) -> None:
        """Give the messages in flight back, and close the connections."""
        try:
            if self._open is not None:
                with anyio.move_on_after(_GIVE_BACK_TIMEOUT_S):
                    await self._open.visibility.give_back_all()
        finally:
            await self._stack.aclose()
