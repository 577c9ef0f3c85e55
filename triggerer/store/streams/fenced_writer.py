"""Stores changes that belong to streams, many in one transaction (group commit).

A change is stored only if its stream's lease still holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from random import Random
from typing import ClassVar, Protocol, TypeVar

from triggerer.backoff import Backoff, warn_seldom
from triggerer.domain.events import Fence
from triggerer.errors import (
    ConfigurationError,
    StoreError,
    TransientStoreError,
    TriggererError,
)
from triggerer.observability.logging_setup import LazyLogger
from triggerer.store.database.group_commit import GroupCommit
from triggerer.store.database.transactions import Database
from triggerer.synchronization import Notifier

_log = LazyLogger(__name__)


class Change(Protocol):
    """A change to store."""

    @property
    def fence(self) -> Fence:
        """The lease under which the change may be stored."""

    @property
    def on_done(self) -> Callable[[Exception | None], None]:
        """Called once: with None if the change is durable, otherwise with the error."""


C = TypeVar("C", bound=Change)


class FencedWriter(GroupCommit[list[C]]):
    """Writes changes in groups, each group in one transaction. While the database is away, the changes wait.

    Args:
        on_fenced: Called on the event loop with each lost lease. For instance, another instance has claimed the stream.
        random: For the jitter of retries.
    """

    what: ClassVar[str]
    """The kind of the changes, as the beginning of a log message."""
    # Writing a group again is safe. Only the failures of a replayed message (`Returned`) may then be counted twice.
    retried = (TransientStoreError, ConfigurationError)
    refusals = StoreError

    def __init__(
        self,
        database: Database,
        *,
        on_fenced: Callable[[Fence], None],
        random: Random | None = None,
    ) -> None:
        super().__init__(Backoff(first=0.05, longest=5.0, random=random or Random()))
        self._database = database
        self._on_fenced = on_fenced
        self._unwritten: Counter[str] = Counter()
        """By stream digest, the number of changes whose `on_done` has not been called yet."""
        self._has_answered = Notifier()

    def is_writing(self, stream_digest: str) -> bool:
        """Return whether any submitted change of the stream still waits for the call of its `on_done`."""
        return stream_digest in self._unwritten

    async def wait_until_written(self, stream_digests: Collection[str]) -> None:
        """Wait until `on_done` has been called for all submitted changes of these streams."""
        while any(map(self.is_writing, stream_digests)):
            await self._has_answered.wait()

    def _mark_submitted(self, change: C) -> None:
        self._unwritten[change.fence.stream_digest] += 1

    def _answer(self, change: C, error: Exception | None) -> None:
        digest = change.fence.stream_digest
        self._unwritten[digest] -= 1
        if not self._unwritten[digest]:
            del self._unwritten[digest]
            self._has_answered.notify_all()
        change.on_done(error)

    def _halves(self, group: list[C]) -> tuple[list[C], list[C]] | None:
        middle = len(group) // 2
        return (group[:middle], group[middle:]) if middle else None

    def _without_refused(self, group: list[C], error: StoreError) -> tuple[list[C], ...]:
        for change in group:
            _log.error(
                f"{self.what}: refused",
                watcher=getattr(change, "watcher_id", None),
                stream=change.fence.stream_digest,
                error=str(error),
            )
            self._answer(change, error)
        return ()

    def _record_failure(self, error: TriggererError, delay: float) -> None:
        warn_seldom(
            _log,
            self._backoff.failures,
            f"{self.what}: they wait for the database",
            error=str(error),
            retry_after_s=round(delay, 3),
        )
