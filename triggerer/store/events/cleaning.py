"""Old asset events: which of them are needed no more, and their deletion, some thousand ids at a time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.database.script import Script, perform, single_step
from triggerer.store.database.statement import Statement, in_list
from triggerer.store.partitions.keys import DIVIDED

_IN_EVENTS: Final = in_list("event_ids", "bigint")
_NO_REPEAT: Final = "~"
"""How the key of an event begins that is never a repeat, see `AssetEvent`."""

_NEWEST: Final = Statement(
    "SELECT (SELECT max(e.id) FROM asset_event e WHERE e.asset_id = a.id) FROM asset a"
)
_LAST: Final = Statement(
    "SELECT id FROM asset_event WHERE id > {after} ORDER BY id LIMIT 1 OFFSET {offset}"
)
_HIGHEST: Final = Statement("SELECT max(id) FROM asset_event")
_OLD: Final = Statement(
    """
SELECT id, watcher_id, CASE WHEN timestamp < {quiet_since} THEN 1 ELSE 0 END FROM asset_event
WHERE id > {after} AND id <= {last} AND timestamp < {before}
ORDER BY id
"""
)
_QUEUED: Final = Statement(
    """
SELECT DISTINCT asset_event_id, run_pk FROM queued_asset_event
WHERE asset_event_id > {after} AND asset_event_id <= {last}
"""
)
_KEYED: Final = Statement(
    """
SELECT DISTINCT asset_event_id, run_pk FROM dag_partition_event
WHERE asset_event_id > {after} AND asset_event_id <= {last}
"""
)
_EMITTED: Final = Statement(
    """
SELECT e.id, (SELECT r.id FROM dag_run r WHERE r.dag_id = e.source_dag_id AND r.run_id = e.source_run_id),
       substr(e.idempotency_key, 1, 1)
FROM asset_event e
WHERE e.id > {after} AND e.id <= {last} AND e.source_run_id IS NOT NULL
"""
)
_DELETE: Final = Statement(
    "DELETE FROM asset_event WHERE id {IN_EVENTS} RETURNING id", IN_EVENTS=_IN_EVENTS
)
_RELEASE: Final = Statement(
    "UPDATE asset_event SET idempotency_key = '~/' || id WHERE id {IN_EVENTS}", IN_EVENTS=_IN_EVENTS
)
# By the range and without the index of what runs have taken, which would be read as far as it was divided.
_DELETE_DIVIDED: Final = Statement(
    """
DELETE FROM queued_asset_event
WHERE asset_event_id >= {first} AND asset_event_id <= {last} AND asset_event_id {IN_EVENTS}
  AND coalesce(run_pk, -1) = {DIVIDED}
""",
    IN_EVENTS=_IN_EVENTS,
    DIVIDED=(str(DIVIDED), str(DIVIDED)),
)


@dataclass(frozen=True, slots=True)
class OldEvent:
    """An event from before the instant that was asked for."""

    id: int
    watcher_id: int
    """0: not from a watcher."""
    is_quiet: bool
    """It is so old that its message has been advanced, if its watcher's stream is in good order."""


@dataclass(frozen=True, slots=True)
class Window:
    """The old events with ids in a range, and what is known of them."""

    last: int
    """The highest id of the range."""
    old: Sequence[OldEvent]
    queued: frozenset[int]
    """Those that wait for a DAG."""
    in_runs: frozenset[int]
    """Those that a run has, which is not deleted."""
    emitted: frozenset[int]
    """Those that a task of such a run has emitted: if it is repeated, they are found by their keys."""
    orphans: frozenset[int]
    """Those whose run is gone, and that still have the key which a task of that run gave them."""
    divided: frozenset[int]
    """Those of which an entry of a queue is left that has become entries of partition keys."""


async def newest_events(session: AsyncSession) -> set[int]:
    """Return the newest event of each asset: `inlet_events[asset][-1]` is to be there."""
    rows = await perform(session, single_step(_NEWEST()))
    return {event for (event,) in rows if event is not None}


async def highest_event(session: AsyncSession) -> int:
    """Return the highest id; 0: there are none."""
    ((highest,),) = await perform(session, single_step(_HIGHEST()))
    return highest or 0


def read_window(
    *,
    after: int,
    highest: int,
    size: int,
    before: datetime,
    quiet_since: datetime,
    removed_runs: Collection[int],
) -> Script[Window]:
    """Return the next `size` events by id, as far as they are old.

    Args:
        highest: No event beyond this id is looked at.
        removed_runs: Runs that count as deleted.
    """
    ends = yield _LAST(after=after, offset=size - 1)
    last = min(ends[0][0], highest) if ends else highest
    place = {"after": after, "last": last}
    rows = yield _OLD(**place, before=before, quiet_since=quiet_since)
    old = [OldEvent(event, watcher, bool(is_quiet)) for event, watcher, is_quiet in rows]
    if not old:
        none: frozenset[int] = frozenset()
        return Window(last, (), none, none, none, none, none)
    entries = yield _QUEUED(**place)
    keyed = yield _KEYED(**place)
    emitted = yield _EMITTED(**place)
    runs = [
        *((event, run) for event, run in entries if run != DIVIDED),
        *((event, run) for event, run in keyed),
    ]
    return Window(
        last,
        old,
        frozenset(event for event, run in runs if run is None),
        frozenset(event for event, run in runs if run is not None and run not in removed_runs),
        frozenset(
            event for event, run, _ in emitted if run is not None and run not in removed_runs
        ),
        frozenset(event for event, run, mark in emitted if run is None and mark != _NO_REPEAT),
        frozenset(event for event, run in entries if run == DIVIDED),
    )


def delete_events(event_ids: Sequence[int], divided: Collection[int]) -> Script[int]:
    """Delete events, and the entries that partition keys have left of them; return how many events were there."""
    if not event_ids:
        return 0
    gone = yield _DELETE(event_ids=list(event_ids))
    if left := sorted(set(event_ids).intersection(divided)):
        yield _DELETE_DIVIDED(first=left[0], last=left[-1], event_ids=left)
    return len(gone)


def release_keys(event_ids: Sequence[int]) -> Script[None]:
    """Give these events keys that nobody uses again.

    A run that gets the id of one that is gone would seem to repeat its events: they would not be recorded.
    """
    if event_ids:
        yield _RELEASE(event_ids=list(event_ids))
