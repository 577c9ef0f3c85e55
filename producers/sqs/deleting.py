"""Deletes messages that are done, in batches, and remembers those that could not be deleted."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import anyio

from producers.sqs.batching import Batches, Failure
from producers.sqs.errors import Throttled, asked
from producers.sqs.in_flight import InFlight
from producers.sqs.message import Held
from producers.sqs.queue import Queue
from triggerer.errors import BrokerUnavailable
from triggerer.pluginkit.backoff import Backoff

logger = logging.getLogger(__name__)

_CONCURRENCY: Final = 8
_RETRY_FIRST_S: Final = 0.05
_RETRY_LONGEST_S: Final = 2.0


class Deleting:
    """Deletes with the newest receipt handle; what fails is repeated, or made up for when the message returns."""

    def __init__(
        self, client: Any, queue: Queue, in_flight: InFlight, *, unavailable_after_s: float
    ) -> None:
        self._client = client
        self._queue = queue
        self._in_flight = in_flight
        self._unavailable_after_s = unavailable_after_s
        self._batches: Batches[Held] = Batches(self._send, concurrency=_CONCURRENCY)

    async def run(self) -> None:
        """Send what is to be deleted, until cancelled."""
        await self._batches.run()

    async def delete(self, held: Held) -> None:
        """Delete a message; it is kept invisible meanwhile.

        A message whose handle is void (it was not renewed in time) cannot be deleted now. It is when it comes again,
        and nobody is given it then.

        Raises:
            BrokerUnavailable: It could not be deleted in `unavailable_after_s`, for reasons that may pass.
            BrokerRefused: This identity may not.
        """
        began = anyio.current_time()
        backoff = Backoff(first=_RETRY_FIRST_S, longest=_RETRY_LONGEST_S)
        while True:
            error: BrokerUnavailable
            try:
                failure = await self._batches.add(held)
            except Throttled as throttled:
                error, began = throttled, anyio.current_time()
            except BrokerUnavailable as unavailable:
                error = unavailable
            else:
                if held.handle != held.asked_with:
                    # It was delivered again meanwhile; the service may have taken the old handle, to no effect.
                    continue
                if failure is None:
                    self._in_flight.forget_done(held)
                    self._in_flight.remove(held)
                    return
                if failure.is_ours:
                    self._note_void(held, failure)
                    return
                error = BrokerUnavailable(
                    f"{held!r} could not be deleted: {failure.text}",
                    hint="it is done, and would be delivered again",
                )
            if anyio.current_time() - began > self._unavailable_after_s:
                raise error
            await anyio.sleep(backoff.next_delay())

    def _note_void(self, held: Held, failure: Failure) -> None:
        logger.warning("%r cannot be deleted now, but is if it comes again: %s", held, failure.text)
        self._in_flight.note_done(held)

    async def _send(self, batch: Sequence[Held]) -> Mapping[str, Any]:
        for held in batch:
            held.asked_with = held.handle
        answer: Mapping[str, Any] = await asked(
            self._client.delete_message_batch(
                QueueUrl=self._queue.url,
                # The ids are places, not the messages': no two may be equal.
                Entries=[
                    {"Id": str(index), "ReceiptHandle": held.handle}
                    for index, held in enumerate(batch)
                ],
            ),
            f"deleting {len(batch)} messages of queue {self._queue.name!r}",
        )
        return answer
