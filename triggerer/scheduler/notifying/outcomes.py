"""Stores the outcome of each sending, and reports targets that do not accept messages."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Final

import structlog

from triggerer.errors import StoreError
from triggerer.observability.metrics.table import NOTIFICATIONS_FAILED, NOTIFICATIONS_SENT
from triggerer.store.database.transactions import Database, database_now
from triggerer.store.notifications import queue
from triggerer.store.notifications.queue import QueuedMessage

_log = structlog.get_logger(__name__)

_FIRST_DELAY: Final = timedelta(seconds=10)
_LONGEST_DELAY: Final = timedelta(minutes=10)


def delay_after(attempts: int) -> timedelta:
    """Return how long a message waits after this number of failed attempts.

    The message waits 10 s after the first attempt, then twice as long after each further attempt, up to 10 minutes.
    """
    doubled: int = 2 ** min(attempts - 1, 10)
    return min(_FIRST_DELAY * doubled, _LONGEST_DELAY)


class Outcomes:
    """Stores outcomes of messages. Logs once that a target fails, and once that it accepts messages again."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._open: dict[int, QueuedMessage] = {}
        self._failing: set[str] = set()

    def expect(self, messages: Iterable[QueuedMessage]) -> None:
        """Set the messages of the next sending."""
        self._open = {one.id: one for one in messages}

    async def store(self, id_: int, error: str | None) -> None:
        """Store the outcome of a message: delete the message, or let it wait for its next attempt.

        If the store is unavailable, nothing is stored, and the message is sent again later.
        """
        message = self._open.pop(id_)
        self._report(message, error)
        try:
            async with self._database.transaction() as session:
                if error is None:
                    await queue.mark_sent(session, [id_])
                else:
                    until = await database_now(session) + delay_after(message.attempts)
                    await queue.postpone(session, message, until)
        except StoreError as refused:
            _log.warning("the outcome of a notification is not stored", error=str(refused))

    async def release_untried(self) -> None:
        """Release the messages that were not tried because an earlier message to their target failed.

        When they are due again, see `triggerer.store.notifications.queue`.
        """
        left, self._open = list(self._open.values()), {}
        if not left:
            return
        async with self._database.transaction() as session:
            now = await database_now(session)
            for message in left:
                await queue.release(session, message, now)

    def _report(self, message: QueuedMessage, error: str | None) -> None:
        target = message.target
        (NOTIFICATIONS_SENT if error is None else NOTIFICATIONS_FAILED).add(1, target)
        if error is None:
            if target in self._failing:
                _log.info("a target of notifications accepts messages again", target=target)
            self._failing.discard(target)
        elif target not in self._failing:
            self._failing.add(target)
            _log.warning("a target of notifications fails", target=target, error=error)
