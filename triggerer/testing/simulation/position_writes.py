"""What one transaction writes of the positions of watchers that are behind (`triggerer.store.queries.positions`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from triggerer.store.queries.held_fences import HELD
from triggerer.store.queries.positions import DROP, SAVE
from triggerer.testing.simulation.delivery import PositionRow

if TYPE_CHECKING:
    from triggerer.store.engine.script import Row
    from triggerer.store.engine.statement import Statement
    from triggerer.testing.simulation.store import Store

POSITIONS: Final = {HELD, SAVE, DROP}
"""The statements."""


class Locks(Protocol):
    """The transaction that it is a part of."""

    store: Store

    async def lock_row(self, name: str) -> None: ...

    async def share_streams(self) -> None: ...


class PositionWrites:
    """Durable, all at once, when `apply` is called."""

    def __init__(self) -> None:
        self._standings: dict[tuple[int, int], PositionRow | None] = {}
        """By watcher and lane; None: the row goes."""

    async def perform(
        self, session: Locks, statement: Statement, rows: Sequence[Sequence[Any]]
    ) -> list[Row]:
        """Perform a statement; its rows are locked until the end of the transaction."""
        if statement is HELD:
            await session.share_streams()
            leases = session.store.owners.leases
            return [row for row in rows if leases.get(row[0]) == tuple(row[1:])]
        for watcher, lane, *_ in rows:
            await session.lock_row(f"position {watcher} {lane}")
        await session.store.faults.delay()
        for watcher, lane, *saved in rows:
            standing = None
            if saved:
                digest, position, since, _, failures, *_ = saved
                topic, offset = orjson.loads(position)
                assert topic == digest
                standing = PositionRow(topic, int(lane), offset, [topic, offset], since, failures)
            self._standings[watcher, int(lane)] = standing
        return []

    def apply(self, store: Store) -> None:
        """The transaction commits."""
        streams = {
            watcher.watcher_id: row.stream_digest
            for row in store.triggers.values()
            for watcher in row.watchers
        }
        for at, standing in self._standings.items():
            watcher, lane = at
            if standing is not None and streams.get(watcher) != standing.topic:
                # It was deleted meanwhile.
                continue
            before = store.positions.pop(at, None)
            if standing is not None:
                store.positions[at] = standing
            store.checker.trace(
                "position", watcher=watcher, lane=lane, offset=standing and standing.offset
            )
            store.checker.lagging.on_moved(watcher, lane, before, standing)
            if standing is not None:
                store.checker.rest.on_counted(watcher, standing)
