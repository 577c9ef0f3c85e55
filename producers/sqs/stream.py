"""An open stream, with the objects that receive its messages, track them in flight, and settle them.

This module imports the SDK.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio

from producers.sqs.connecting import find_queue, open_client
from producers.sqs.dead_letter import DeadLetters
from producers.sqs.deletions import Deletions
from producers.sqs.in_flight import InFlight
from producers.sqs.queue import Queue, canonical
from producers.sqs.receiving import Receiving
from producers.sqs.settle import Settler
from producers.sqs.visibility import Visibility

if TYPE_CHECKING:
    from producers.sqs.message import Delivery
    from producers.sqs.received import ReceivedMessages
    from producers.sqs.settings import SqsSettings

logger = logging.getLogger(__name__)

_streams: Final[Counter[str]] = Counter()
"""The number of streams in this process that read a queue, by its URL."""


@asynccontextmanager
async def open_queue(
    name: str, settings: SqsSettings, received: ReceivedMessages
) -> AsyncIterator[OpenStream]:
    """Connect and find the queue; nothing is received before `OpenStream.run`.

    Raises:
        BrokerUnavailable, BrokerRefused: See `connecting`.
    """
    async with open_client(settings, name) as client:
        queue = await find_queue(client, name, settings)
        with _reading(queue):
            yield OpenStream(client, queue, settings, received)


@contextmanager
def _reading(queue: Queue) -> Iterator[None]:
    """Warn if another stream of this process reads the queue, for instance by its URL instead of its name."""
    url = canonical(queue.url)
    if _streams[url]:
        logger.warning(
            "another stream reads queue %s too: each gets a part of the messages. Use one connection, and the same name"
            " or URL of the queue, in all watchers",
            url,
        )
    _streams[url] += 1
    try:
        yield
    finally:
        _streams[url] -= 1


class OpenStream:
    """Receives messages, keeps them invisible to other receivers, deletes them and gives them back."""

    def __init__(
        self, client: Any, queue: Queue, settings: SqsSettings, received: ReceivedMessages
    ) -> None:
        self._received = received
        in_flight = InFlight(queue, on_removed=self._mark_removed)
        self.visibility = Visibility(client, queue, in_flight)
        self.deletions = Deletions(
            client, queue, in_flight, unavailable_after_s=settings.unavailable_after_s
        )
        self.receiving = Receiving(
            client, queue, in_flight, settings, on_received=self._mark_received
        )
        self.dead_letters = DeadLetters(client, queue, settings)
        self.settler = Settler(
            in_flight,
            self.visibility,
            self.deletions,
            self.dead_letters,
            settings,
            give_again=self._give_again,
        )
        self._tasks: anyio.abc.TaskGroup | None = None

    async def run(self) -> None:
        """Receive messages and renew their visibility timeouts, until cancelled; see `SqsSharedStreamProducer.run`."""
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(self.visibility.run)
                tasks.start_soon(self.deletions.run)
                if self._received.is_paused:
                    self.receiving.pause()
                await self.receiving.run()
        except ExceptionGroup as group:
            raise _first(group) from group

    def _mark_received(self, new: list[Delivery], done: list[Delivery]) -> None:
        if not (new or done):
            return
        self.visibility.mark_received()
        self._received.put(new)
        assert self._tasks is not None
        if done:
            self._tasks.start_soon(self.deletions.delete, done)

    def _give_again(self, messages: list[Delivery], delay_s: float) -> None:
        self._received.put_later(messages, anyio.current_time() + delay_s)

    def _mark_removed(self) -> None:
        self.receiving.signal_room()


def _first(group: ExceptionGroup) -> Exception:
    error: Exception = group
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
