"""What one transaction writes of the positions of watchers that are behind (`triggerer.store.watchers.positions`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from triggerer.domain.watchers.lane_positions import Reemission
from triggerer.store.streams.fences import VALID
from triggerer.store.watchers.positions import DROP, END, SAVE
from triggerer.testing.simulation.kernel.delivery import PositionRow, offset_of

if TYPE_CHECKING:
    from triggerer.store.database.script import Row
    from triggerer.store.database.statement import Statement
    from triggerer.testing.simulation.database.model import Store

POSITIONS: Final = {VALID, SAVE, DROP, END}
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
        self._ended: set[int] = set()
        """Requests to read again that were carried out or refused."""

    async def perform(
        self, session: Locks, statement: Statement, values: Mapping[str, Any]
    ) -> list[Row]:
        """Perform a statement; its rows are locked until the end of the transaction."""
        if statement is END:
            await session.store.faults.delay()
            self._ended.update(values["requests"])
            return []
        rows: Sequence[Sequence[Any]] = values["rows"].rows
        if statement is VALID:
            await session.share_streams()
            leases = session.store.owners.leases
            return [row for row in rows if leases.get(row[0]) == tuple(row[1:])]
        for watcher, lane, *_ in rows:
            await session.lock_row(f"position {watcher} {lane}")
            if statement is DROP:
                await session.store.deleting_position(watcher, int(lane))
        await session.store.faults.delay()
        for watcher, lane, *saved in rows:
            standing = None
            if statement is SAVE:
                digest, text, since, _, failures, reemit, rewound_to = saved
                position = orjson.loads(text)
                found = session.store.checker.catching_up.lanes(digest)[int(lane)]
                standing = PositionRow(
                    digest,
                    int(lane),
                    offset_of(found, position),
                    position,
                    since,
                    failures,
                    None if reemit is None else Reemission(*orjson.loads(reemit)),
                    None if rewound_to is None else orjson.loads(rewound_to),
                )
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
            store.checker.catching_up.on_moved(watcher, lane, before, standing)
            if standing is not None:
                store.checker.rest.on_row(watcher, before, standing)
                store.checker.replays.on_row(watcher, standing)
        for request in self._ended:
            store.replays.pop(request, None)
