"""The wake-ups by which a commit wakes other parts of the service. Nothing polls the database.

A wake-up only hints that something changed. The part that it wakes reads the database. So a wake-up may be repeated or
too broad, but it must not be lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from enum import StrEnum
from typing import Final, Self

import anyio
from anyio.lowlevel import checkpoint
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.synchronization import AutoResetEvent

ALL: Final = "*"
"""The subject that means every subject."""

# Bounds the memory of a subscription that nobody reads. Beyond it, "all" is cheaper to act on anyway.
_MAX_SUBJECTS: Final = 10_000
_ANNOUNCED: Final = "triggerer.announced"


class Signal(StrEnum):
    """The event that a wake-up announces; its subjects are in parentheses."""

    EVENTS_QUEUED = "events_queued"
    """Asset events wait (DAG ids)."""
    RUNS_QUEUED = "runs_queued"
    """Runs wait for an executor (DAG ids)."""
    RUNS_ENDED = "runs_ended"
    """Runs ended or were cancelled (DAG ids)."""
    RUNS_CANCELLED = "runs_cancelled"
    """Somebody asked to cancel runs (primary keys)."""
    BACKFILLS_CHANGED = "backfills_changed"
    """A backfill has begun (DAG ids)."""
    CALLBACKS_DUE = "callbacks_due"
    """Callbacks wait for an executor after the end of runs (DAG ids)."""
    DAGS_CHANGED = "dags_changed"
    """DAGs were parsed, paused or unpaused (DAG ids)."""
    REPORTS_WANTED = "reports_wanted"
    """Somebody looks at the live state of streams (no subjects)."""
    STREAMS_CHANGED = "streams_changed"
    """Triggers, watchers or streams changed (stream digests)."""


Announced = dict[Signal, set[str]]


class Subscription:
    """The wake-ups for one part of the service. For one task. Close it, or use it in a `with`."""

    def __init__(self, wakeups: Wakeups, signals: frozenset[Signal]) -> None:
        self._wakeups = wakeups
        self.signals: Final = signals
        self._pending: Announced = {}
        self._arrived = AutoResetEvent()

    async def wait(self, timeout: timedelta | None = None) -> Announced:
        """Return all subjects since the last call, by signal; wait for the first if there are none.

        Args:
            timeout: How long to wait before an empty dict is returned. None: for ever.
        Cancellation: Pending subjects stay for the next call.
        """
        if self._pending:
            await checkpoint()
        else:
            self._arrived.clear()
            if timeout is None:
                await self._arrived.wait()
            else:
                with anyio.move_on_after(timeout.total_seconds()):
                    await self._arrived.wait()
        return self.take_nowait()

    def take_nowait(self) -> Announced:
        """Return the result of `wait` without waiting; empty if nothing arrived."""
        taken, self._pending = self._pending, {}
        return taken

    def close(self) -> None:
        self._wakeups.unsubscribe(self)

    def deliver(self, signal: Signal, subjects: Iterable[str]) -> None:
        """Add subjects, for `Wakeups`. Subjects that arrive between two calls of `wait` are merged."""
        pending = self._pending.setdefault(signal, set())
        pending.update(subjects)
        if len(pending) > _MAX_SUBJECTS:
            self._pending[signal] = {ALL}
        self._arrived.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Wakeups:
    """Carries wake-ups within this process. Each `Database` has one, for one event loop."""

    def __init__(self) -> None:
        self._subscriptions: dict[Subscription, None] = {}

    def subscribe(self, *signals: Signal) -> Subscription:
        """Subscribe to these signals. From now on, their subjects collect for the next `wait`."""
        subscription = Subscription(self, frozenset(signals))
        self._subscriptions[subscription] = None
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        self._subscriptions.pop(subscription, None)

    def publish(self, signal: Signal, *subjects: str) -> None:
        """Wake the signal's subscribers at once. Without subjects: about all subjects."""
        for subscription in self._subscriptions:
            if signal in subscription.signals:
                subscription.deliver(signal, subjects or (ALL,))

    def publish_everything(self) -> None:
        """Wake all subscribers about everything, because an announcement may have been missed."""
        for signal in Signal:
            self.publish(signal)


def announce(session: AsyncSession, signal: Signal, *subjects: str) -> None:
    """Wake the signal's subscribers in all processes when the session's transaction has committed.

    Nothing is delivered if the transaction rolls back. Without `subjects`, the signal is about all subjects. The
    session must come from `Database.transaction`.
    """
    announced: Announced = session.info.setdefault(_ANNOUNCED, {})
    announced.setdefault(signal, set()).update(subjects or (ALL,))


def announced_in(session: AsyncSession) -> Announced:
    """Return the announcements of the session's transaction so far."""
    announced: Announced = session.info.get(_ANNOUNCED, {})
    return announced
