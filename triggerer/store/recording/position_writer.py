"""Group commit of the positions of watchers that are behind."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from triggerer.backoff import Backoff, warn_seldom
from triggerer.domain.events import Fence
from triggerer.domain.lane_positions import PositionChange
from triggerer.errors import (
    ConfigurationError,
    StoreError,
    TransientStoreError,
    TriggererError,
)
from triggerer.logging_setup import LazyLogger
from triggerer.store.engine.database import Database
from triggerer.store.group_commit import GroupCommit
from triggerer.store.queries.positions import write_positions
from triggerer.store.recording.lost_leases import lease_lost

_log = LazyLogger(__name__)

_MOST_ROWS: Final = 2_000


class PositionWriter(GroupCommit[list[PositionChange]]):
    """The runtime's `PositionSink`: what is submitted while a transaction is under way goes into the next one.

    While the database is away, changes wait. There are few: the runtime submits one at a time of a watcher and lane.

    Args:
        on_fenced: Called on the event loop when a lease no longer holds: another instance owns the stream.
    """

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
        self._waiting: dict[tuple[int, str], list[PositionChange]] = {}

    def submit_nowait(self, change: PositionChange) -> None:
        self._waiting.setdefault((change.watcher_id, change.lane), []).append(change)
        if self._is_idle:
            self._wake()

    def _take(self) -> list[PositionChange] | None:
        if not self._waiting:
            return None
        group: list[PositionChange] = []
        for key in list(self._waiting)[:_MOST_ROWS]:
            # One of each: a statement writes no row twice, and they are stored in their order.
            changes = self._waiting[key]
            group.append(changes.pop(0))
            if not changes:
                del self._waiting[key]
        return group

    async def _write(self, group: list[PositionChange]) -> None:
        lost = await self._database.perform(
            write_positions(
                [(c.fence, c.watcher_id, c.lane, c.position, c.since, c.head) for c in group]
            )
        )
        for fence in lost:
            self._on_fenced(fence)
        for change in group:
            change.on_done(lease_lost(change.fence) if change.fence in lost else None)

    def _halves(
        self, group: list[PositionChange]
    ) -> tuple[list[PositionChange], list[PositionChange]] | None:
        middle = len(group) // 2
        return (group[:middle], group[middle:]) if middle else None

    def _without_refused(
        self, group: list[PositionChange], error: StoreError
    ) -> tuple[list[PositionChange], ...]:
        for change in group:
            _log.error("a position was refused", watcher=change.watcher_id, error=str(error))
            change.on_done(error)
        return ()

    def _note_failure(self, error: TriggererError, delay: float) -> None:
        warn_seldom(
            _log,
            self._backoff.failures,
            "positions of watchers that are behind wait for the database",
            error=str(error),
            retry_after_s=round(delay, 3),
        )
