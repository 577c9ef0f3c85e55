"""Stores the positions of watchers that are behind, many in one transaction (group commit)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from triggerer.domain.events import Fence
from triggerer.domain.watchers.lane_positions import PositionChange, ReplayEnd
from triggerer.store.database.transactions import Database
from triggerer.store.streams.fenced_writer import FencedWriter
from triggerer.store.streams.lost_leases import lease_lost
from triggerer.store.watchers.positions import write_positions

_MOST_ROWS: Final = 2_000


_Change = PositionChange | ReplayEnd


class PositionWriter(FencedWriter[_Change]):
    """The `PositionSink` to which streams submit positions and finished replays.

    The number of waiting changes has no bound. The number stays small, because a stream usually submits the next change
    for a watcher and lane only once the previous change is stored.
    """

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
        self._ends: list[ReplayEnd] = []

    def submit_nowait(self, change: PositionChange) -> None:
        self._waiting.setdefault((change.watcher_id, change.lane), []).append(change)
        self._mark_submitted(change)
        if self._is_idle:
            self._wake()

    def end_replay_nowait(self, end: ReplayEnd) -> None:
        self._ends.append(end)
        self._mark_submitted(end)
        if self._is_idle:
            self._wake()

    def _take(self) -> list[_Change] | None:
        if not (self._waiting or self._ends):
            return None
        group: list[_Change] = [*self._ends]
        self._ends.clear()
        for key in list(self._waiting)[:_MOST_ROWS]:
            # Take one change for each watcher and lane, because a statement cannot write a row twice. Later changes
            # wait for the next group, in order.
            changes = self._waiting[key]
            group.append(changes.pop(0))
            if not changes:
                del self._waiting[key]
        return group

    async def _write(self, group: list[_Change]) -> None:
        lost = await self._database.perform(
            write_positions(
                [one for one in group if isinstance(one, PositionChange)],
                [one for one in group if isinstance(one, ReplayEnd)],
            )
        )
        for fence in lost:
            self._on_fenced(fence)
        for change in group:
            self._answer(change, lease_lost(change.fence) if change.fence in lost else None)
