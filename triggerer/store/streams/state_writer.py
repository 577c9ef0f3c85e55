"""Stores the states of streams, many in one transaction (group commit)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from random import Random
from typing import Any, Final

from triggerer.domain.events import Fence
from triggerer.domain.watchers.stream_states import StateChange
from triggerer.store.database.transactions import Database
from triggerer.store.streams.fenced_writer import FencedWriter
from triggerer.store.streams.lost_leases import lease_lost
from triggerer.store.streams.states import load_state, write_states

_MOST_ROWS: Final = 200


class StateWriter(FencedWriter[StateChange]):
    """The `StateStore` from which streams load their producers' states, and to which they submit new states."""

    what = "states of streams"

    def __init__(
        self,
        database: Database,
        *,
        on_fenced: Callable[[Fence], None],
        random: Random | None = None,
    ) -> None:
        super().__init__(database, on_fenced=on_fenced, random=random)
        self._waiting: dict[str, deque[StateChange]] = {}

    async def load(self, fence: Fence, key: Hashable) -> Any:
        async with self._database.reading() as session:
            return await load_state(session, fence.stream_digest)

    def submit_nowait(self, change: StateChange) -> None:
        self._waiting.setdefault(change.fence.stream_digest, deque()).append(change)
        self._mark_submitted(change)
        if self._is_idle:
            self._wake()

    def _take(self) -> list[StateChange] | None:
        group: list[StateChange] = []
        for digest in list(self._waiting)[:_MOST_ROWS]:
            # Take one change of each stream, because one statement cannot write a stream's row
            # twice. Later changes of the stream wait, in order, for the next groups.
            changes = self._waiting[digest]
            group.append(changes.popleft())
            if not changes:
                del self._waiting[digest]
        return group or None

    async def _write(self, group: list[StateChange]) -> None:
        lost = await self._database.perform(write_states(group))
        for fence in lost:
            self._on_fenced(fence)
        for change in group:
            self._answer(change, lease_lost(change.fence) if change.fence in lost else None)
