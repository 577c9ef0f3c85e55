"""Polls the queue: usually with one poll at a time, and with several while the queue has many messages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio.lowlevel import checkpoint

from producers.sqs.attempts import Attempts
from producers.sqs.batching import BATCH
from producers.sqs.errors import Throttled, asked
from producers.sqs.in_flight import InFlight
from producers.sqs.message import SYSTEM_ATTRIBUTES, Delivery
from producers.sqs.queue import Queue
from triggerer.errors import BrokerUnavailable
from triggerer.pluginkit.backoff import Backoff, is_worth_a_line

if TYPE_CHECKING:
    from producers.sqs.settings import SqsSettings

logger = logging.getLogger(__name__)

_RETRY_FIRST_S: Final = 0.2
_RETRY_LONGEST_S: Final = 5.0
_HELPERS_WAIT_S: Final = 1
"""How long each poll beyond the first one waits for messages. The time is not 0, because a poll that does not wait asks
only some of SQS's servers, and may miss messages.
"""


class Receiving:
    """Polls the queue while fewer than `max_in_flight` messages are in flight.

    After each full answer, `run` starts a helper that polls too, up to `receivers` pollers in all. A helper ends at its
    first answer that is not full, at an error, or when polling must pause.

    Args:
        on_received: Called with two lists: the new messages, in order, and the messages that only have to be deleted.
    """

    def __init__(
        self,
        client: Any,
        queue: Queue,
        in_flight: InFlight,
        settings: SqsSettings,
        *,
        on_received: Callable[[list[Delivery], list[Delivery]], None],
    ) -> None:
        self._client = client
        self._queue = queue
        self._in_flight = in_flight
        self._settings = settings
        self._on_received = on_received
        self._attempts = Attempts() if queue.is_fifo else None
        self._reserved = 0
        """The number of messages that the open polls may return."""
        self._helpers = 0
        self._is_paused = False
        self._has_changed = anyio.Event()

    @property
    def _what(self) -> str:
        return f"receiving from queue {self._queue.name!r}"

    def signal_room(self) -> None:
        """Let the receivers continue, because a message is no longer in flight."""
        self._has_changed.set()

    def pause(self) -> None:
        """Begin no further poll."""
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self._has_changed.set()

    async def run(self) -> None:
        """Receive until cancelled, and then wait for open polls, because their answers may contain messages.

        Raises:
            BrokerUnavailable: SQS has not answered polls for `unavailable_after_s`.
            BrokerRefused: The queue was deleted, or this identity may not receive from it.
        """
        async with anyio.create_task_group() as tasks:
            backoff = Backoff(first=_RETRY_FIRST_S, longest=_RETRY_LONGEST_S)
            answered_at = anyio.current_time()
            while True:
                waits_from = anyio.current_time()
                await self._until_possible()
                # While no poll may begin, SQS has nothing to answer.
                answered_at += anyio.current_time() - waits_from
                try:
                    is_full = await self._receive(self._settings.receive_wait_s)
                except BrokerUnavailable as error:
                    now = anyio.current_time()
                    if isinstance(error, Throttled):
                        answered_at = now
                    elif now - answered_at > self._settings.unavailable_after_s:
                        raise
                    delay = backoff.next_delay()
                    if is_worth_a_line(backoff.failures):
                        logger.warning("%s; asked again in %.1f s", error, delay)
                    await anyio.sleep(delay)
                    continue
                backoff.reset()
                answered_at = anyio.current_time()
                if is_full and self._helpers < self._settings.receivers - 1:
                    self._helpers += 1
                    tasks.start_soon(self._help)

    async def _help(self) -> None:
        """Receive while there are more messages than one poll returns."""
        try:
            while self._room > 0 and not self._is_paused:
                if not await self._receive(_HELPERS_WAIT_S):
                    return
        except BrokerUnavailable as error:
            # Only log the error. If the failure lasts, the polls of `run` raise it.
            logger.info("%s", error)
        finally:
            self._helpers -= 1

    @property
    def _room(self) -> int:
        return self._settings.max_in_flight - len(self._in_flight) - self._reserved

    async def _until_possible(self) -> None:
        while self._is_paused or self._room <= 0:
            self._has_changed = anyio.Event()
            await self._has_changed.wait()

    async def _receive(self, wait_s: int) -> bool:
        """Poll once; return whether the answer was full."""
        # The poll is shielded, so let a cancellation take effect here, before the poll.
        await checkpoint()
        count = min(BATCH, self._room)
        if count <= 0:
            return False
        self._reserved += count
        try:
            # Shield the poll: if it were cancelled, its messages would be lost, and invisible until their timeout.
            deadline_s = wait_s + self._settings.request_timeout_s
            with anyio.move_on_after(deadline_s, shield=True):
                raws = await self._poll(count, min(wait_s, self._settings.receive_wait_s))
                self._on_received(*self._in_flight.take(raws, anyio.current_time()))
                return len(raws) >= count
        finally:
            self._reserved -= count
        raise BrokerUnavailable(f"{self._what}: no answer in {deadline_s:g} s")

    async def _poll(self, count: int, wait_s: int) -> Sequence[Mapping[str, Any]]:
        request: dict[str, Any] = {
            "QueueUrl": self._queue.url,
            "MaxNumberOfMessages": count,
            "WaitTimeSeconds": wait_s,
            "VisibilityTimeout": self._queue.lease_s,
            "MessageSystemAttributeNames": SYSTEM_ATTRIBUTES,
            "MessageAttributeNames": ["All"],
        }
        if self._attempts is None:
            answer = await asked(self._client.receive_message(**request), self._what)
        else:
            with self._attempts.attempt() as identity:
                request["ReceiveRequestAttemptId"] = identity
                answer = await asked(self._client.receive_message(**request), self._what)
        return answer.get("Messages") or ()
