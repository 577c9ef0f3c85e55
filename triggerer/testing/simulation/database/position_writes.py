"""The positions that one transaction writes (`triggerer.store.watchers.positions`)."""

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
"""The statements on positions."""


class Locks(Protocol):
    """The transaction that the writes belong to."""

    store: Store

    async def lock_row(self, name: str) -> None: ...

    async def share_streams(self) -> None: ...


class PositionWrites:
    """Collects writes, which `apply` makes durable all at once."""

    def __init__(self) -> None:
        self._written: dict[tuple[int, int], PositionRow | None] = {}
        """By watcher and lane, the new row, or None if the row is deleted."""
        self._ended: set[int] = set()
        """Replays that were done or refused."""

    async def perform(
        self, session: Locks, statement: Statement, values: Mapping[str, Any]
    ) -> list[Row]:
        """Perform a statement, and lock its rows until the end of the transaction."""
        if statement is END:
            await session.store.faults.delay()
            self._ended.update(request for request, _ in values["rows"].rows)
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
            row = None
            if statement is SAVE:
                digest, text, since, _, failures, reemit, rewound_to = saved
                position = orjson.loads(text)
                found = session.store.checker.catching_up.lanes(digest)[int(lane)]
                row = PositionRow(
                    digest,
                    int(lane),
                    offset_of(found, position),
                    position,
                    since,
                    failures,
                    None if reemit is None else Reemission(*orjson.loads(reemit)),
                    None if rewound_to is None else orjson.loads(rewound_to),
                )
            self._written[watcher, int(lane)] = row
        return []

    def apply(self, store: Store) -> None:
        """Commit all writes."""
        streams = {
            watcher.watcher_id: trigger.stream_digest
            for trigger in store.triggers.values()
            for watcher in trigger.watchers
        }
        for at, row in self._written.items():
            watcher, lane = at
            if row is not None and streams.get(watcher) != row.topic:
                # The watcher was deleted meanwhile.
                continue
            before = store.positions.pop(at, None)
            if row is not None:
                store.positions[at] = row
            store.checker.trace("position", watcher=watcher, lane=lane, offset=row and row.offset)
            store.checker.catching_up.on_moved(watcher, lane, before, row)
            if row is not None:
                store.checker.rest.on_row(watcher, before, row)
                store.checker.replays.on_row(watcher, row)
        for request in self._ended:
            store.replays.pop(request, None)
