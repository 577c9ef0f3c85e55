"""Where watchers stand that are behind: read with the triggers of a stream, written under the stream's lease."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

import orjson
from sqlalchemy import delete, exists, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.events import Fence
from triggerer.domain.lane_positions import LanePosition, Position
from triggerer.store.engine.script import Script
from triggerer.store.engine.statement import ParameterRows, Statement, parameter_rows
from triggerer.store.models import Trigger, Watcher, WatcherPosition
from triggerer.store.queries.held_fences import held_fences

WrittenPosition = tuple[Fence, int, str, Position | None, datetime, int | None, int]
"""Fence, watcher, lane, position (None: the row goes), since when it is behind, the head, and the failures there."""

# Not of a watcher that was deleted meanwhile, or whose trigger has moved to another stream.
SAVE: Final = Statement(
    "INSERT INTO watcher_position (watcher_id, lane, stream_digest, position, since, head, failures) "
    "SELECT g.watcher_id, g.lane, g.digest, g.position, g.since, g.head, g.failures FROM {POSITIONS} g "
    "JOIN watcher w ON w.id = g.watcher_id "
    "JOIN trigger t ON t.id = w.trigger_id AND t.stream_digest = g.digest "
    "WHERE true ON CONFLICT (watcher_id, lane) DO UPDATE SET stream_digest = excluded.stream_digest, "
    "position = excluded.position, since = excluded.since, head = excluded.head, "
    "failures = excluded.failures",
    POSITIONS=parameter_rows(
        watcher_id="bigint",
        lane="text",
        digest="text",
        position="jsonb",
        since="timestamptz",
        head="bigint",
        failures="integer",
    ),
)
DROP: Final = Statement(
    "DELETE FROM watcher_position WHERE (watcher_id, lane) IN "
    "(SELECT g.watcher_id, g.lane FROM {POSITIONS} g)",
    POSITIONS=parameter_rows(watcher_id="bigint", lane="text"),
)


def write_positions(changes: Sequence[WrittenPosition]) -> Script[frozenset[Fence]]:
    """Store these changes, as far as their fences hold; return the fences that do not.

    Args:
        changes: One for each watcher and lane.
    """
    fences = {fence for fence, *_ in changes}
    held = yield from held_fences(fences)
    saved = [
        (
            watcher_id,
            lane,
            fence.stream_digest,
            orjson.dumps(position).decode(),
            since,
            head,
            failures,
        )
        for fence, watcher_id, lane, position, since, head, failures in changes
        if position is not None and fence in held
    ]
    if saved:
        yield SAVE(rows=ParameterRows(sorted(saved, key=_watcher_and_lane)))
    dropped = [
        (watcher_id, lane)
        for fence, watcher_id, lane, position, *_ in changes
        if position is None and fence in held
    ]
    if dropped:
        yield DROP(rows=ParameterRows(sorted(dropped)))
    return frozenset(fences - held)


def _watcher_and_lane(row: Sequence[Any]) -> tuple[int, str]:
    return row[0], row[1]


async def load_positions(
    session: AsyncSession, stream_digests: Iterable[str]
) -> dict[int, list[LanePosition]]:
    """Return where the watchers of these streams stand that are behind, by watcher."""
    rows = await session.scalars(
        select(WatcherPosition)
        .where(WatcherPosition.stream_digest.in_(list(stream_digests)))
        .order_by(WatcherPosition.watcher_id, WatcherPosition.lane)
    )
    found: dict[int, list[LanePosition]] = {}
    for row in rows:
        position = LanePosition(row.watcher_id, row.lane, row.position, row.since, row.failures)
        found.setdefault(row.watcher_id, []).append(position)
    return found


async def drop_positions_without_stream(session: AsyncSession) -> None:
    """Delete the rows of watchers that were deleted, or whose triggers belong to another stream now."""
    belongs = (
        exists()
        .where(
            Watcher.id == WatcherPosition.watcher_id,
            Trigger.id == Watcher.trigger_id,
            Trigger.stream_digest == WatcherPosition.stream_digest,
        )
        .correlate(WatcherPosition)
    )
    await session.execute(delete(WatcherPosition).where(~belongs))
