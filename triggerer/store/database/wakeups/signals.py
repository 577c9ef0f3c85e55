"""Wake-ups: a commit wakes the parts of the service that wait for its kind of change, so that they need not poll.

A wake-up is only a hint to read the database. So a wake-up may come twice or name too many subjects, but must not be
lost.
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

# A subscription must stay small even while its owner does not read it. If more subjects than this wait, `ALL` replaces
# them.
_MAX_SUBJECTS: Final = 10_000
_ANNOUNCED: Final = "triggerer.announced"


class Signal(StrEnum):
    """The kind of change that a commit made.

    The subjects of a wake-up are the ids of the changed objects. The parentheses below say which ids.
    """

    EVENTS_QUEUED = "events_queued"
    """Asset events were queued for DAGs (DAG ids)."""
    RUNS_QUEUED = "runs_queued"
    """Runs wait for an executor (DAG ids)."""
    RUNS_ENDED = "runs_ended"
    """Runs ended or were cancelled (DAG ids)."""
    RUNS_CANCELLED = "runs_cancelled"
    """A user asked to cancel running runs (primary keys)."""
    BACKFILLS_CHANGED = "backfills_changed"
    """A backfill was created (DAG ids)."""
    CALLBACKS_DUE = "callbacks_due"
    """Callbacks wait for an executor after the end of runs (DAG ids)."""
    DAGS_CHANGED = "dags_changed"
    """DAGs or their files changed, or DAGs were paused, unpaused or deleted (DAG ids)."""
    REPORTS_WANTED = "reports_wanted"
    """A user looks at the live state of streams (no subjects)."""
    STREAMS_CHANGED = "streams_changed"
    """Triggers or watchers changed, streams were created or released, or a replay was requested (stream digests)."""


Announced = dict[Signal, set[str]]


class Subscription:
    """Collects the wake-ups for one part of the service.

    Use a subscription in a `with`, or close it. Only one task may wait for its wake-ups.
    """

    def __init__(self, wakeups: Wakeups, signals: frozenset[Signal]) -> None:
        self._wakeups = wakeups
        self.signals: Final = signals
        self._pending: Announced = {}
        self._arrived = AutoResetEvent()

    async def wait(self, timeout: timedelta | None = None) -> Announced:
        """Return the subjects that arrived since the last call, by signal. If there are none, wait for the first.

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
        """Return the subjects that arrived since the last call, by signal, without waiting; empty if there are none."""
        taken, self._pending = self._pending, {}
        return taken

    def close(self) -> None:
        self._wakeups.unsubscribe(self)

    def deliver(self, signal: Signal, subjects: Iterable[str]) -> None:
        """Add subjects that the next `wait` will return. `Wakeups` calls this."""
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
    """Carries wake-ups to the subscriptions in this process. Each `Database` has one `Wakeups`, for one event loop."""

    def __init__(self) -> None:
        self._subscriptions: dict[Subscription, None] = {}

    def subscribe(self, *signals: Signal) -> Subscription:
        """Subscribe to these signals. The next `wait` returns the subjects that are published from now on."""
        subscription = Subscription(self, frozenset(signals))
        self._subscriptions[subscription] = None
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        self._subscriptions.pop(subscription, None)

    def publish(self, signal: Signal, *subjects: str) -> None:
        """Wake the signal's subscribers in this process now. No subjects: the wake-up is about all subjects."""
        for subscription in self._subscriptions:
            if signal in subscription.signals:
                subscription.deliver(signal, subjects or (ALL,))

    def publish_everything(self) -> None:
        """Wake all subscribers about everything, because an announcement may have been missed."""
        for signal in Signal:
            self.publish(signal)


def announce(session: AsyncSession, signal: Signal, *subjects: str) -> None:
    """Wake the signal's subscribers in all processes when the session's transaction has committed.

    If the transaction rolls back, no subscriber is woken. Without `subjects`, the wake-up is about all subjects. The
    session must come from `Database.transaction`.
    """
    announced: Announced = session.info.setdefault(_ANNOUNCED, {})
    announced.setdefault(signal, set()).update(subjects or (ALL,))


def announced_in(session: AsyncSession) -> Announced:
    """Return the announcements of the session's transaction so far."""
    announced: Announced = session.info.get(_ANNOUNCED, {})
    return announced
