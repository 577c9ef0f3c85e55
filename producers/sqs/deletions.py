"""Deletes finished messages in batches, and remembers the messages that could not be deleted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import anyio

from producers.sqs.batching import Answer, Batches, Failure
from producers.sqs.errors import Throttled, asked
from producers.sqs.in_flight import InFlight
from producers.sqs.message import Delivery
from producers.sqs.queue import Queue
from triggerer.errors import BrokerError, BrokerRefused, BrokerUnavailable
from triggerer.pluginkit.backoff import Backoff

logger = logging.getLogger(__name__)

_CONCURRENCY: Final = 8
_RETRY_FIRST_S: Final = 0.05
_RETRY_LONGEST_S: Final = 2.0


class _Left:
    """The messages that an attempt did not delete.

    Attributes:
        error: The most serious error of the attempt: a refusal, else throttling, else any other error.
    """

    def __init__(self) -> None:
        self.at_once: list[Delivery] = []
        self.later: list[Delivery] = []
        self.error: BrokerError | None = None

    def add(self, delivery: Delivery, error: BrokerError) -> None:
        self.later.append(delivery)
        if self.error is None or _rank(error) > _rank(self.error):
            self.error = error


def _rank(error: BrokerError) -> int:
    return 2 if isinstance(error, BrokerRefused) else int(isinstance(error, Throttled))


def _nothing(messages: Sequence[Delivery]) -> None:
    """Do nothing: this caller only waits until all messages are deleted."""


class Deletions:
    """Deletes messages by their newest receipt handles, and repeats failed deletions."""

    def __init__(
        self, client: Any, queue: Queue, in_flight: InFlight, *, unavailable_after_s: float
    ) -> None:
        self._client = client
        self._queue = queue
        self._in_flight = in_flight
        self._unavailable_after_s = unavailable_after_s
        self._batches: Batches[Delivery] = Batches(self._send, concurrency=_CONCURRENCY)

    async def run(self) -> None:
        """Send deletions until cancelled."""
        await self._batches.run()

    async def delete(
        self,
        messages: Sequence[Delivery],
        mark_gone: Callable[[Sequence[Delivery]], None] = _nothing,
    ) -> None:
        """Delete messages; return when each message is deleted, or cannot be deleted now.

        A message cannot be deleted if SQS refuses its receipt handle, usually because its invisibility was not renewed
        in time. When such a message comes again, it is deleted, and no watcher receives it.

        Args:
            mark_gone: Called after each answer with the messages that are deleted, or cannot be deleted.
        Raises:
            BrokerUnavailable: A message could not be deleted for `unavailable_after_s`. Each time SQS throttles
                (`Throttled`), this time starts again.
            BrokerRefused: This identity may not delete messages.
        """
        began = anyio.current_time()
        backoff = Backoff(first=_RETRY_FIRST_S, longest=_RETRY_LONGEST_S)
        while messages:
            left = _Left()

            def record_answers(
                answers: Sequence[tuple[Delivery, Answer]], left: _Left = left
            ) -> None:
                gone = [
                    delivery
                    for delivery, answer in answers
                    if self._take_answer(delivery, answer, left)
                ]
                if gone:
                    mark_gone(gone)

            await self._batches.add_all(messages, record_answers)
            messages = [*left.at_once, *left.later]
            if left.error is None:
                continue
            if isinstance(left.error, BrokerRefused):
                raise left.error
            if isinstance(left.error, Throttled):
                began = anyio.current_time()
            elif anyio.current_time() - began > self._unavailable_after_s:
                raise left.error
            await anyio.sleep(backoff.next_delay())

    def _take_answer(self, delivery: Delivery, answer: Answer, left: _Left) -> bool:
        """Return True if the message is deleted, or cannot be deleted now. Otherwise add it to `left`."""
        if isinstance(answer, BrokerError):
            left.add(delivery, answer)
        elif delivery.handle != delivery.delete_handle:
            # The message was delivered again while the request was open. SQS may have accepted the old handle without
            # effect, so try the new one.
            left.at_once.append(delivery)
        elif answer is None:
            self._in_flight.forget_done(delivery)
            self._in_flight.remove(delivery)
            return True
        elif answer.is_ours:
            self._mark_void(delivery, answer)
            return True
        else:
            error = BrokerUnavailable(
                f"{delivery!r} could not be deleted: {answer.text}",
                hint="its events are stored, and it would be delivered again",
            )
            left.add(delivery, error)
        return False

    def _mark_void(self, delivery: Delivery, failure: Failure) -> None:
        logger.warning(
            "%r cannot be deleted now; it is deleted when it comes again: %s",
            delivery,
            failure.text,
        )
        self._in_flight.mark_done(delivery)

    async def _send(self, batch: Sequence[Delivery]) -> Mapping[str, Any]:
        for delivery in batch:
            delivery.delete_handle = delivery.handle
        answer: Mapping[str, Any] = await asked(
            self._client.delete_message_batch(
                QueueUrl=self._queue.url,
                # The ids are indices, because no two entries may have the same id.
                Entries=[
                    {"Id": str(index), "ReceiptHandle": delivery.handle}
                    for index, delivery in enumerate(batch)
                ],
            ),
            f"deleting {len(batch)} messages of queue {self._queue.name!r}",
        )
        return answer
