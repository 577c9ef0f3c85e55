"""Reads old asset events with the reasons to keep them, and deletes events, a few thousand ids at a time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.database.script import Script, perform, single_step
from triggerer.store.database.statement import Statement, in_list
from triggerer.store.partitions.keys import DIVIDED
from triggerer.store.schema.models import AssetEvent

_IN_EVENTS: Final = in_list("event_ids", "bigint")
_NO_REPEAT: Final = "~"
"""The first character of the keys that the store makes up for events without an idempotency key.

Such a key is random, so its event is never a duplicate.
"""

_NEWEST: Final = Statement(
    "SELECT (SELECT max(e.id) FROM asset_event e WHERE e.asset_id = a.id) FROM asset a"
)
_LAST: Final = Statement(
    "SELECT id FROM asset_event WHERE id > {after} ORDER BY id LIMIT 1 OFFSET {offset}"
)
_HIGHEST: Final = Statement("SELECT max(id) FROM asset_event")
_NUMBER: Final = Statement("SELECT count(*) FROM asset_event")
_OLD: Final = Statement(
    """
SELECT id, watcher_id, CASE WHEN timestamp < {quiet_since} THEN 1 ELSE 0 END,
       CASE WHEN timestamp < {expired_before} THEN 1 ELSE 0 END
FROM asset_event
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
# With the range of ids, the planner uses the index on event ids. Otherwise it would read the whole index of events that
# runs have taken.
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
    """An old event. `before`, `quiet_since` and `expired_before` are the arguments of `read_window`."""

    id: int
    watcher_id: int
    """0 if the event is not from a watcher."""
    is_quiet: bool
    """True if the event is from before `quiet_since`: a healthy stream has advanced past the event's message."""
    is_expired: bool
    """True if the event is from before `expired_before` and may be deleted. False: only its key may be freed."""


@dataclass(frozen=True, slots=True)
class Window:
    """The old events with ids in a range, and the reasons to keep them."""

    last: int
    """The highest id of the range."""
    old: Sequence[OldEvent]
    queued: frozenset[int]
    """Events that wait for a DAG."""
    in_runs: frozenset[int]
    """Events that a run has taken, if the run's row remains after this cleaning."""
    emitted: frozenset[int]
    """Events that a task of a run emitted, if the run's row remains after this cleaning.

    If the task is retried, the events' keys prevent duplicates.
    """
    orphans: frozenset[int]
    """Events that a task of a deleted run emitted, and that still have the task's idempotency key."""
    divided: frozenset[int]
    """Events that were divided among partition keys. Each still has an entry in the queue."""


async def newest_events(session: AsyncSession) -> set[int]:
    """Return the ids of each asset's newest event. These events must stay: tasks read `inlet_events[asset][-1]`."""
    rows = await perform(session, single_step(_NEWEST()))
    return {event for (event,) in rows if event is not None}


async def highest_event(session: AsyncSession) -> int:
    """Return the highest event id, or 0."""
    ((highest,),) = await perform(session, single_step(_HIGHEST()))
    return highest or 0


def read_window(
    *,
    after: int,
    highest: int,
    size: int,
    before: datetime,
    expired_before: datetime,
    quiet_since: datetime,
    removed_runs: Collection[int],
) -> Script[Window]:
    """Return the old events among the next `size` event ids.

    Args:
        after: The id where the range begins, exclusive.
        highest: Events beyond this id are ignored.
        before: An event is old if its instant is before this.
        expired_before: An old event from before this instant may be deleted.
        quiet_since: An old event from before this instant is quiet, see `OldEvent`.
        removed_runs: Primary keys of the runs that this cleaning deletes. These runs count as gone even if their rows
            still exist.
    """
    ends = yield _LAST(after=after, offset=size - 1)
    last = min(ends[0][0], highest) if ends else highest
    place = {"after": after, "last": last}
    rows = yield _OLD(
        **place, before=before, quiet_since=quiet_since, expired_before=expired_before
    )
    old = [
        OldEvent(event, watcher, bool(is_quiet), bool(is_expired))
        for event, watcher, is_quiet, is_expired in rows
    ]
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
    """Delete events and the leftover queue entries of divided events; return how many events were deleted."""
    if not event_ids:
        return 0
    gone = yield _DELETE(event_ids=list(event_ids))
    if left := sorted(set(event_ids).intersection(divided)):
        yield _DELETE_DIVIDED(first=left[0], last=left[-1], event_ids=left)
    return len(gone)


def release_keys(event_ids: Sequence[int]) -> Script[None]:
    """Replace the idempotency keys of events that tasks of deleted runs emitted.

    A later run may get the run id of a deleted run. The later run's tasks then emit events with the old keys, and the
    store would drop these events as duplicates.
    """
    if event_ids:
        yield _RELEASE(event_ids=list(event_ids))


async def count_all_events(session: AsyncSession) -> int:
    """Return the number of all events. This reads a whole index."""
    ((number,),) = await perform(session, single_step(_NUMBER()))
    return int(number)


async def oldest_of_newest(session: AsyncSession, number: int) -> datetime | None:
    """Return the instant of the oldest of the newest `number` events; None if there are fewer events."""
    newest = select(AssetEvent.timestamp).order_by(AssetEvent.id.desc())
    instant: datetime | None = await session.scalar(newest.offset(max(number - 1, 0)).limit(1))
    return instant
