"""Reads and writes the positions of watchers that are behind in a log.

Positions are read when the watcher's stream opens, and written only while the stream's lease holds. This module also
reads requests for replays, and deletes each request after the replay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from sqlalchemy import delete, exists, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.events import Fence
from triggerer.domain.text.json_text import dump_json
from triggerer.domain.watchers.lane_positions import (
    LanePosition,
    PositionChange,
    Reemission,
    ReplayEnd,
    ReplayRequest,
)
from triggerer.store.database.script import Script
from triggerer.store.database.statement import ParameterRows, Statement, parameter_rows
from triggerer.store.schema.models import Trigger, Watcher, WatcherPosition, WatcherReplay
from triggerer.store.streams.fences import valid_fences

# The joins leave out watchers that were deleted, or moved to another stream, after the position was submitted.
SAVE: Final = Statement(
    "INSERT INTO watcher_position "
    "(watcher_id, lane, stream_digest, position, since, head, failures, reemit, rewound_to) "
    "SELECT g.watcher_id, g.lane, g.digest, g.position, g.since, g.head, g.failures, g.reemit, g.rewound_to "
    "FROM {POSITIONS} g "
    "JOIN watcher w ON w.id = g.watcher_id "
    "JOIN trigger t ON t.id = w.trigger_id AND t.stream_digest = g.digest "
    "WHERE true ON CONFLICT (watcher_id, lane) DO UPDATE SET stream_digest = excluded.stream_digest, "
    "position = excluded.position, since = excluded.since, head = excluded.head, "
    "failures = excluded.failures, reemit = excluded.reemit, rewound_to = excluded.rewound_to",
    POSITIONS=parameter_rows(
        watcher_id="bigint",
        lane="text",
        digest="text",
        position="json",
        since="timestamptz",
        head="bigint",
        failures="integer",
        reemit="json",
        rewound_to="json",
    ),
)
# The condition includes the digest. Otherwise the owner of a watcher's former stream could delete the watcher's
# position in its new stream.
DROP: Final = Statement(
    "DELETE FROM watcher_position WHERE (watcher_id, lane, stream_digest) IN "
    "(SELECT g.watcher_id, g.lane, g.digest FROM {POSITIONS} g)",
    POSITIONS=parameter_rows(watcher_id="bigint", lane="text", digest="text"),
)
# The joins leave out a request whose watcher has moved to another stream. `SAVE` left out its positions, so the other
# stream must carry the request out.
END: Final = Statement(
    "DELETE FROM watcher_replay WHERE id IN (SELECT g.request FROM {ENDS} g "
    "JOIN watcher_replay r ON r.id = g.request "
    "JOIN watcher w ON w.id = r.watcher_id "
    "JOIN trigger t ON t.id = w.trigger_id AND t.stream_digest = g.digest)",
    ENDS=parameter_rows(request="bigint", digest="text"),
)


def write_positions(
    changes: Sequence[PositionChange], ends: Sequence[ReplayEnd] = ()
) -> Script[frozenset[Fence]]:
    """Store these changes, each only if its fence (lease) holds. Return the fences that do not hold.

    Args:
        changes: At most one for each watcher and lane. A change with the position None deletes the position.
        ends: Replay requests that were carried out, to be deleted. A request stays if its watcher has moved to another
            stream.
    """
    fences = {change.fence for change in changes} | {end.fence for end in ends}
    valid = yield from valid_fences(fences)
    saved = [
        (
            change.watcher_id,
            change.lane,
            change.fence.stream_digest,
            _json(change.position),
            change.since,
            change.log_end,
            change.failures,
            _json(change.reemit),
            _json(change.rewound_to),
        )
        for change in changes
        if change.position is not None and change.fence in valid
    ]
    if saved:
        yield SAVE(rows=ParameterRows(sorted(saved, key=_watcher_and_lane)))
    dropped = [
        (change.watcher_id, change.lane, change.fence.stream_digest)
        for change in changes
        if change.position is None and change.fence in valid
    ]
    if dropped:
        yield DROP(rows=ParameterRows(sorted(dropped)))
    ended = [(end.request, end.fence.stream_digest) for end in ends if end.fence in valid]
    if ended:
        yield END(rows=ParameterRows(sorted(ended)))
    return frozenset(fences - valid)


def _json(value: Sequence[Any] | None) -> str | None:
    """Raises: RowRefused: A plugin's `get_position` returned a value that has no JSON form."""
    return None if value is None else dump_json(list(value), "a position").decode()


def _watcher_and_lane(row: Sequence[Any]) -> tuple[int, str]:
    return row[0], row[1]


async def load_positions(
    session: AsyncSession, stream_digests: Iterable[str]
) -> dict[int, list[LanePosition]]:
    """Return, by watcher id, the positions of the watchers that are behind in these streams."""
    rows = await session.scalars(
        select(WatcherPosition)
        .join(Watcher, Watcher.id == WatcherPosition.watcher_id)
        .join(
            Trigger,
            (Trigger.id == Watcher.trigger_id)
            & (Trigger.stream_digest == WatcherPosition.stream_digest),
        )
        .where(WatcherPosition.stream_digest.in_(list(stream_digests)))
        .order_by(WatcherPosition.watcher_id, WatcherPosition.lane)
    )
    found: dict[int, list[LanePosition]] = {}
    for row in rows:
        reemit = None if row.reemit is None else Reemission(*row.reemit[:3])
        position = LanePosition(
            row.watcher_id, row.lane, row.position, row.since, row.failures, reemit, row.rewound_to
        )
        found.setdefault(row.watcher_id, []).append(position)
    return found


async def load_replays(
    session: AsyncSession, stream_digests: Iterable[str]
) -> dict[int, list[ReplayRequest]]:
    """Return the replay requests for watchers of these streams, by watcher id, in the order of the requests."""
    rows = await session.scalars(
        select(WatcherReplay)
        .join(Watcher, Watcher.id == WatcherReplay.watcher_id)
        .join(Trigger, Trigger.id == Watcher.trigger_id)
        .where(Trigger.stream_digest.in_(list(stream_digests)))
        .order_by(WatcherReplay.id)
    )
    found: dict[int, list[ReplayRequest]] = {}
    for row in rows:
        request = ReplayRequest(row.id, row.watcher_id, row.start, row.reemit, row.is_restore)
        found.setdefault(row.watcher_id, []).append(request)
    return found


async def drop_positions_without_stream(session: AsyncSession) -> None:
    """Delete the positions of deleted watchers, and of watchers whose trigger now belongs to another stream.

    The replay requests for deleted watchers are deleted too.
    """
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
    deleted = select(Watcher.id).where(Watcher.trigger_id.is_(None))
    await session.execute(delete(WatcherReplay).where(WatcherReplay.watcher_id.in_(deleted)))
