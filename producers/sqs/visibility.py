"""Keeps messages in flight invisible to other receivers, and gives messages back."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import anyio

from producers.sqs.batching import BATCH, Batches
from producers.sqs.errors import asked
from producers.sqs.in_flight import InFlight
from producers.sqs.message import Delivery
from producers.sqs.queue import Queue
from triggerer.errors import BrokerError
from triggerer.pluginkit.backoff import is_worth_a_line

logger = logging.getLogger(__name__)

_CONCURRENCY: Final = 4
_SHORTEST_WAIT_S: Final = 0.01

Entry = tuple[Delivery, int]


class Visibility:
    """Renews the visibility timeouts of messages in flight before they end, and gives messages back."""

    def __init__(self, client: Any, queue: Queue, in_flight: InFlight) -> None:
        self._client = client
        self._queue = queue
        self._in_flight = in_flight
        self._batches: Batches[Entry] = Batches(self._send, concurrency=_CONCURRENCY)
        self._has_received = anyio.Event()
        self._failures = 0
        """How many renewals have failed since the last success, counting only messages whose timeout had passed."""

    def mark_received(self) -> None:
        """Wake `run`, because a message was received. While there is nothing to renew, `run` waits for this call."""
        self._has_received.set()

    async def run(self) -> None:
        """Renew visibility timeouts, until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._batches.run)
            while True:
                now = anyio.current_time()
                for delivery in self._in_flight.due(now):
                    # Put the next renewal off, so that the message is not due again at once.
                    self._in_flight.mark_not_renewed(delivery, now)
                    if delivery.renewing is None:
                        delivery.renewing = anyio.Event()
                        tasks.start_soon(self._renew, delivery)
                next_due = self._in_flight.next_due()
                if next_due == math.inf:
                    self._has_received = anyio.Event()
                    await self._has_received.wait()
                else:
                    # A message that arrives during this sleep need not end the sleep, because its renewal is due later.
                    await anyio.sleep(max(_SHORTEST_WAIT_S, next_due - now))

    async def _renew(self, delivery: Delivery) -> None:
        in_flight = self._in_flight
        sent_at = anyio.current_time()
        seconds = in_flight.extension(delivery, sent_at)
        try:
            if not seconds:
                logger.warning("%r cannot stay invisible any longer: it comes again", delivery)
                in_flight.mark_lost(delivery)
                return
            failure = await self._batches.add((delivery, seconds))
            if failure is None:
                self._failures = 0
                in_flight.mark_renewed(delivery, sent_at, seconds)
            elif failure.is_ours:
                if in_flight.has(delivery):
                    logger.warning(
                        "%r was not renewed in time, and comes again: %s", delivery, failure.text
                    )
                in_flight.mark_lost(delivery)
            else:
                in_flight.mark_not_renewed(delivery, anyio.current_time())
        except BrokerError as error:
            in_flight.mark_not_renewed(delivery, anyio.current_time())
            if in_flight.has(delivery) and anyio.current_time() > delivery.expires_at:
                # Count the failures, because otherwise each attempt would log a line for each message.
                self._failures += 1
                say = logger.warning if is_worth_a_line(self._failures) else logger.debug
                say("%r could not be renewed, and may come again: %s", delivery, error)
        finally:
            assert delivery.renewing is not None
            delivery.renewing.set()
            delivery.renewing = None

    async def give_back(self, delivery: Delivery, delay_s: int) -> None:
        """Make a message visible to all receivers after a delay.

        The message leaves `in_flight` at the beginning of the call.
        """
        self._in_flight.remove(delivery)
        if delivery.renewing is not None:
            # Wait for the renewal that is under way, which might otherwise reach SQS after this request.
            await delivery.renewing.wait()
        if delivery.is_lost:
            return
        try:
            failure = await self._batches.add((delivery, delay_s))
        except BrokerError as error:
            logger.info("%r comes again later than it should: %s", delivery, error)
            return
        if failure is not None:
            logger.info(
                "%r comes again only after its visibility timeout: %s", delivery, failure.text
            )

    async def give_back_all(self) -> None:
        """Give all messages in flight back. Called at the end of the stream, when `run` and all polls have ended."""
        now = anyio.current_time()
        # Leave out lost and expired messages, because other receivers may have them now.
        left = [
            delivery
            for delivery in self._in_flight
            if not delivery.is_lost and delivery.expires_at > now
        ]
        for delivery in list(self._in_flight):
            self._in_flight.remove(delivery)
        limiter = anyio.CapacityLimiter(_CONCURRENCY)

        async def give(batch: Sequence[Delivery]) -> None:
            async with limiter:
                try:
                    await self._send([(delivery, 0) for delivery in batch])
                except BrokerError as error:
                    logger.info(
                        "%d messages come again later than they should: %s", len(batch), error
                    )

        async with anyio.create_task_group() as tasks:
            for start in range(0, len(left), BATCH):
                tasks.start_soon(give, left[start : start + BATCH])

    async def _send(self, entries: Sequence[Entry]) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = await asked(
            self._client.change_message_visibility_batch(
                QueueUrl=self._queue.url,
                Entries=[
                    {
                        "Id": str(index),
                        "ReceiptHandle": delivery.handle,
                        "VisibilityTimeout": seconds,
                    }
                    for index, (delivery, seconds) in enumerate(entries)
                ],
            ),
            f"changing the visibility of {len(entries)} messages of queue {self._queue.name!r}",
        )
        return answer
