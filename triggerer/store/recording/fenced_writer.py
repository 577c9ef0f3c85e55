"""Group commit of single changes, each under the lease of its stream."""

from __future__ import annotations

from collections.abc import Callable
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
from triggerer.logging_setup import LazyLogger
from triggerer.store.engine.database import Database
from triggerer.store.group_commit import GroupCommit

_log = LazyLogger(__name__)


class Change(Protocol):
    """What is to be stored."""

    @property
    def fence(self) -> Fence: ...

    @property
    def on_done(self) -> Callable[[Exception | None], None]: ...


C = TypeVar("C", bound=Change)


class FencedWriter(GroupCommit[list[C]]):
    """What is submitted while a transaction is under way goes into the next one. While the database is away, it waits.

    Args:
        on_fenced: Called on the event loop when a lease no longer holds: another instance owns the stream.
    """

    what: ClassVar[str]
    """Names the changes, for logs."""
    # A repeat writes the same rows again.
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
            change.on_done(error)
        return ()

    def _note_failure(self, error: TriggererError, delay: float) -> None:
        warn_seldom(
            _log,
            self._backoff.failures,
            f"{self.what}: they wait for the database",
            error=str(error),
            retry_after_s=round(delay, 3),
        )
