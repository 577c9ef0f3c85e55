"""Finds occurrences, queues messages about them, and sends the messages.

An occurrence is news about a watcher or a DAG, such as a failure. A target is a receiver of messages, such as a chat.

A target gets the message about an occurrence at least once:

- One transaction records the occurrence as reported and queues the message. So a crash loses no message, and only one
  instance queues the message.
- If the process ends between the sending and the commit that deletes the message, the target gets the message twice.
- Exception: a message is dropped once it has waited for a day, or once 200 newer messages wait for its target.

The notifier runs in the scheduler's process. It searches for occurrences when runs have ended, when
a queued message is due, and at least every `[scheduler] heartbeat_sec` seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import anyio
import structlog
from anyio.abc import TaskStatus
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.backoff import Backoff, warn_seldom
from triggerer.domain.notifications import Decision, Event, NotificationText, decide
from triggerer.errors import ConfigurationError, StoreError
from triggerer.notifications.sending import send_messages
from triggerer.notifications.texts import Writer
from triggerer.observability.metrics.table import NOTIFICATIONS_DROPPED
from triggerer.scheduler.notifying.outcomes import Outcomes
from triggerer.store.database.transactions import Database, database_now
from triggerer.store.database.wakeups.signals import Signal
from triggerer.store.notifications import queue
from triggerer.store.notifications.notified_subjects import (
    forget_notified,
    load_notified,
    lock_notifications,
    mark_notified,
)
from triggerer.store.notifications.occurrences import find_occurrences
from triggerer.store.notifications.queue import QueuedMessage

_log = structlog.get_logger(__name__)

_GAP: Final = timedelta(seconds=5)
"""The least time between two searches for occurrences. Runs may end many times in a second."""
_AT_ONCE: Final = 10
"""The most messages for one target in one sending."""
_FORGET_EVERY: Final = timedelta(hours=1)


class Notifier:
    """Notifies people of occurrences, with one child process for each sending.

    Several notifiers may work on one database: each claims the messages that it sends.

    Args:
        events: The kinds of occurrences to report.
        get_url: Returns the URL of the target with this name. It is called before each sending. If it raises a
            `ConfigurationError`, the sending to this target has failed.
        get_writer: Returns the writer of the messages.
        look_every: How often to search the store for occurrences if no run has ended.
        deadline: The longest time that one sending may take.
    """

    def __init__(
        self,
        database: Database,
        events: Collection[Event],
        *,
        targets: Sequence[str],
        get_url: Callable[[str], str],
        get_writer: Callable[[], Writer],
        look_every: timedelta = timedelta(seconds=30),
        deadline: timedelta = timedelta(seconds=30),
        gap: timedelta = _GAP,
    ) -> None:
        self._database = database
        self._events = events
        self._targets = targets
        self._get_url = get_url
        self._get_writer = get_writer
        self._look_every = look_every
        self._deadline = deadline
        self._gap = gap
        self._backoff = Backoff(first=1.0, longest=60.0)
        self._outcomes = Outcomes(database)
        self._forget_at = -1.0

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Notify until cancelled.

        Cancellation: Stops sending at once. Messages without an outcome are sent again after the next start.
        """
        with self._database.wakeups.subscribe(Signal.RUNS_ENDED) as subscription:
            task_status.started()
            while True:
                wait = self._look_every
                try:
                    await self.queue_messages()
                    until_due = await self.send_due()
                    if until_due is not None:
                        wait = until_due
                    self._backoff.reset()
                except (StoreError, OSError) as error:
                    # The store is away, or no process can be started.
                    delay = self._backoff.next_delay()
                    failures = self._backoff.failures
                    warn_seldom(_log, failures, "notifications wait", error=str(error))
                    wait = timedelta(seconds=delay)
                await subscription.wait(min(wait, self._look_every))
                await anyio.sleep(self._gap.total_seconds())

    async def queue_messages(self) -> int:
        """Queue messages about the occurrences to report now; return how many messages each target gets."""
        async with self._database.reading() as session:
            # Search without a lock first: usually there is nothing to report, and nothing to write.
            decision = await self._decide(session, await database_now(session))
        is_time_to_forget = anyio.current_time() >= self._forget_at
        if not (decision.single or decision.digest or is_time_to_forget):
            return 0
        async with self._database.transaction() as session:
            now = await database_now(session)
            await lock_notifications(session, now)
            decision = await self._decide(session, now)
            await mark_notified(session, decision.single, now, in_digest=False)
            await mark_notified(session, decision.digest, now, in_digest=True)
            messages = self._write(decision)
            await queue.put(session, self._targets, messages, now)
            dropped = await queue.drop(session, self._targets, now)
            await forget_notified(session, now)
        self._forget_at = anyio.current_time() + _FORGET_EVERY.total_seconds()
        for target, number in dropped.items():
            NOTIFICATIONS_DROPPED.add(number, target)
            _log.warning("notifications were dropped", target=target, messages=number)
        return len(messages)

    async def _decide(self, session: AsyncSession, now: datetime) -> Decision:
        told, digest_at = await load_notified(session)
        found = await find_occurrences(session, self._events, told, now)
        return decide(found, told, digest_at, now)

    def _write(self, decision: Decision) -> list[NotificationText]:
        writer = self._get_writer()
        messages = [writer.write(one) for one in decision.single]
        return [*messages, writer.write_digest(decision.digest)] if decision.digest else messages

    async def send_due(self) -> timedelta | None:
        """Send the messages that are due; return how long to wait for the next one, or None if no message waits."""
        claimed = await self._claim()
        if claimed:
            by_target: dict[str, list[QueuedMessage]] = {}
            for one in claimed:
                by_target.setdefault(one.target, []).append(one)
            self._outcomes.expect(claimed)
            urls = await self._resolve(by_target)
            numbered = {
                target: [(one.id, one.message) for one in by_target[target]] for target in urls
            }
            if urls:
                await send_messages(urls, numbered, self._outcomes.store, deadline=self._deadline)
            await self._outcomes.release_untried()
        async with self._database.reading() as session:
            due = await queue.next_due(session, self._targets)
            now = await database_now(session)
        return None if due is None else max(due - now, timedelta(0))

    async def _resolve(self, messages: Mapping[str, Sequence[QueuedMessage]]) -> dict[str, str]:
        """Return the URLs of the targets. If a URL cannot be resolved, the first message to its target has failed."""
        urls = {}
        for target, (first, *_) in messages.items():
            try:
                urls[target] = self._get_url(target)
            except ConfigurationError as error:
                await self._outcomes.store(first.id, str(error))
        return urls

    async def _claim(self) -> list[QueuedMessage]:
        async with self._database.reading() as session:
            due = await queue.next_due(session, self._targets)
            if due is None or due > await database_now(session):
                return []
        async with self._database.transaction() as session:
            now = await database_now(session)
            lease = 2 * self._deadline
            return await queue.claim(session, self._targets, now, limit=_AT_ONCE, lease=lease)
