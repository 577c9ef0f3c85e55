"""Group commit of the positions of watchers that are behind."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from triggerer.domain.events import Fence
from triggerer.domain.lane_positions import PositionChange
from triggerer.store.engine.database import Database
from triggerer.store.queries.positions import write_positions
from triggerer.store.recording.fenced_writer import FencedWriter
from triggerer.store.recording.lost_leases import lease_lost

_MOST_ROWS: Final = 2_000


class PositionWriter(FencedWriter[PositionChange]):
    """The runtime's `PositionSink`. Few changes wait: the runtime submits one at a time of a watcher and lane."""

    what = "positions of watchers that are behind"

    def __init__(
        self,
        database: Database,
        *,
        on_fenced: Callable[[Fence], None],
        random: Random | None = None,
    ) -> None:
        super().__init__(database, on_fenced=on_fenced, random=random)
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
        rows = [
            (c.fence, c.watcher_id, c.lane, c.position, c.since, c.head, c.failures) for c in group
        ]
        lost = await self._database.perform(write_positions(rows))
        for fence in lost:
            self._on_fenced(fence)
        for change in group:
            change.on_done(lease_lost(change.fence) if change.fence in lost else None)
