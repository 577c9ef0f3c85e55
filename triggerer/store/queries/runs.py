"""Which DAGs may be due, and the runs that are made of their waiting events."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.runs import RunState, RunType
from triggerer.errors import DagError, RowRefused
from triggerer.store.database import database_now
from triggerer.store.models import Dag
from triggerer.store.statement import Statement, instant_in, is_sqlite, json_from
from triggerer.store.wakeups import Signal, announce

_TICK: Final = timedelta(microseconds=1)
_MAX_RUN_ID: Final = 250

# SQLite, which keeps no statistics unless told to, would go through a DAG's whole history by the
# primary key; PostgreSQL sees for itself that the partial index is the small one.
_HINT: Final = ("INDEXED BY ix_queued_asset_event_waiting", "")

_CANDIDATES: Final = Statement(
    """
SELECT d.dag_id FROM dag d
WHERE NOT d.is_paused AND NOT d.is_stale AND d.schedule IS NOT NULL
  AND EXISTS (SELECT 1 FROM queued_asset_event q {HINT}
              WHERE q.dag_id = d.dag_id AND q.run_pk IS NULL)
ORDER BY d.dag_id
""",
    HINT=_HINT,
)

# The weaker lock lets others insert runs, which refer to the row.
_LOCK: Final = Statement(
    "SELECT dag_id FROM dag WHERE dag_id = ANY({dag_ids}::text[]) ORDER BY dag_id FOR NO KEY UPDATE"
)

# One row for each asset that waits, found by one index probe (not by EXISTS, of which PostgreSQL
# makes a join with all that waits); a backlog is never counted beyond the bound. The assets are
# what the DAG waits for, by itself or through an alias.
_SNAPSHOT: Final = Statement(
    """
SELECT d.dag_id, d.schedule, d.max_active_runs, d.events_per_run, d.params,
       (SELECT count(*) FROM dag_run r
        WHERE r.dag_id = d.dag_id AND r.state IN ('queued', 'running')) AS active_runs,
       w.asset_id, a.name, a.uri, w.alias,
       CASE WHEN d.events_per_run IS NULL THEN 1 ELSE (
           SELECT count(*) FROM (
               SELECT 1 FROM queued_asset_event c {HINT}
               WHERE c.dag_id = d.dag_id AND c.asset_id = w.asset_id AND c.run_pk IS NULL
               LIMIT {bound}) AS counted) END AS queued
FROM dag d
JOIN (
    SELECT s.dag_id, s.asset_id, NULL AS alias FROM dag_schedule_asset s
    UNION ALL
    SELECT l.dag_id, m.asset_id, n.name FROM dag_schedule_alias l
    JOIN asset_alias n ON n.id = l.alias_id
    JOIN asset_alias_member m ON m.alias_id = l.alias_id
) w ON w.dag_id = d.dag_id
JOIN asset a ON a.id = w.asset_id
WHERE d.dag_id {IN_DAGS}
  AND NOT d.is_paused AND NOT d.is_stale AND d.schedule IS NOT NULL
  AND (SELECT 1 FROM queued_asset_event q {HINT}
       WHERE q.dag_id = d.dag_id AND q.asset_id = w.asset_id AND q.run_pk IS NULL
       LIMIT 1) IS NOT NULL
ORDER BY d.dag_id, w.asset_id
""",
    HINT=_HINT,
    IN_DAGS=("IN (SELECT value FROM json_each({dag_ids}))", "= ANY({dag_ids}::text[])"),
)

_CREATE: Final = Statement(
    """
INSERT INTO dag_run (dag_id, run_id, run_type, state, run_after, queued_at, params,
                     attempt, cancel_requested)
VALUES ({dag_id}, {run_id}, {run_type}, {state}, {run_after}, {run_after}, {params}, 0, false)
ON CONFLICT (dag_id, run_id) DO NOTHING RETURNING id
"""
)

_TAKE_ALL: Final = Statement(
    """
UPDATE queued_asset_event {HINT} SET run_pk = {run_pk} WHERE dag_id = {dag_id} AND run_pk IS NULL
""",
    HINT=_HINT,
)

# Up to the last one's id, rather than a list of ids: the inner query is then asked once, whatever
# the planner believes about the sizes of its parts.
_TAKE_OLDEST: Final = Statement(
    """
UPDATE queued_asset_event {HINT} SET run_pk = {run_pk}
WHERE dag_id = {dag_id} AND asset_id = {asset_id} AND run_pk IS NULL AND asset_event_id <= (
    SELECT max(asset_event_id) FROM (
        SELECT q.asset_event_id FROM queued_asset_event q {HINT}
        WHERE q.dag_id = {dag_id} AND q.asset_id = {asset_id} AND q.run_pk IS NULL
        ORDER BY q.asset_event_id
        LIMIT {each}) AS oldest)
""",
    HINT=_HINT,
)


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """One asset of one DAG that has events queued; a DAG's rows are adjacent."""

    dag_id: str
    schedule: Any
    max_active_runs: int
    events_per_run: int | None
    params: Mapping[str, Any]
    active_runs: int
    asset_id: int
    name: str
    uri: str
    alias: str | None
    queued: int


@dataclass(frozen=True, slots=True)
class CreatedRun:
    """A run that was made."""

    pk: int
    dag_id: str
    run_id: str
    run_after: datetime


async def find_candidates(session: AsyncSession) -> list[str]:
    """DAGs that are neither paused nor stale and for which an event waits, in order."""
    return [dag_id for (dag_id,) in await _CANDIDATES.fetch(session)]


async def lock_and_read(
    session: AsyncSession, dag_ids: Collection[str], *, bound: int
) -> list[WaitingRow]:
    """Show what waits for these DAGs, and keep other schedulers off them until the commit.

    Args:
        bound: How far the queued events of an asset are counted, where that matters.
    """
    if not dag_ids:
        return []
    wanted: Any = list(dag_ids)
    if is_sqlite(session):
        # Nobody else can be writing: the transaction itself is the lock.
        wanted = json.dumps(wanted)
    else:
        # A statement of its own: what waited for the lock in the snapshot's own statement would
        # still see the queue as it was before the other scheduler's commit.
        await _LOCK.fetch(session, dag_ids=wanted)
    return [
        WaitingRow(dag_id, json_from(schedule), most, each, json_from(params), *others)
        for dag_id, schedule, most, each, params, *others in await _SNAPSHOT.fetch(
            session, dag_ids=wanted, bound=bound
        )
    ]


async def create_run(
    session: AsyncSession,
    dag_id: str,
    *,
    run_type: RunType,
    run_after: datetime,
    params: Mapping[str, Any],
    run_id: str | None = None,
) -> CreatedRun:
    """Insert a queued run, and announce it.

    Args:
        run_after: Where the id made of it is taken, the next free microsecond is used instead.
        run_id: None: `<type>__<run_after>`.
    Raises:
        RowRefused: The DAG has a run of this id.
    """
    while True:
        made_id = run_id or f"{run_type}__{run_after.isoformat(timespec='microseconds')}"
        pk = await _insert_run(session, dag_id, made_id, run_type, run_after, params)
        if pk is not None:
            announce(session, Signal.RUNS_QUEUED, dag_id)
            return CreatedRun(pk, dag_id, made_id, run_after)
        if run_id is not None:
            raise RowRefused(
                f"the DAG {dag_id!r} already has a run {run_id!r}", hint="choose another run id"
            )
        run_after += _TICK


async def _insert_run(
    session: AsyncSession,
    dag_id: str,
    run_id: str,
    run_type: RunType,
    run_after: datetime,
    params: Mapping[str, Any],
) -> int | None:
    """The new run's key; None if there is a run of this id."""
    rows = await _CREATE.fetch(
        session,
        dag_id=dag_id,
        run_id=run_id,
        run_type=str(run_type),
        state=str(RunState.QUEUED),
        run_after=instant_in(session, run_after),
        params=json.dumps(dict(params)),
    )
    return int(rows[0][0]) if rows else None


async def take_all_events(session: AsyncSession, run: CreatedRun) -> int:
    """Move everything that is queued for the run's DAG into the run; return how many that were."""
    return await _TAKE_ALL.change(session, run_pk=run.pk, dag_id=run.dag_id)


async def take_oldest_events(
    session: AsyncSession, run: CreatedRun, asset_ids: Sequence[int], *, each: int
) -> int:
    """Move the oldest events of each asset, at most `each`, into the run; return how many."""
    total = 0
    for asset_id in asset_ids:
        total += await _TAKE_OLDEST.change(
            session, run_pk=run.pk, dag_id=run.dag_id, asset_id=asset_id, each=each
        )
    return total


async def create_manual_run(
    session: AsyncSession,
    dag_id: str,
    *,
    run_id: str | None = None,
    params: Mapping[str, Any] | None = None,
) -> CreatedRun:
    """Queue a run by hand. Pause and `max_active_runs` hold back events, not a person.

    Args:
        params: Take the place of the DAG's own of the same name.
    Raises:
        DagError: There is no such DAG, or its file is gone.
        RowRefused: The DAG has a run of this id, or the id cannot be one.
    """
    dag = await session.get(Dag, dag_id)
    if dag is None:
        raise DagError(f"there is no DAG {dag_id!r}", hint="`triggerer dags list` shows them")
    if dag.is_stale:
        raise DagError(f"the DAG {dag_id!r} is gone from its file {dag.path}")
    if run_id is not None and (not run_id or len(run_id) > _MAX_RUN_ID or "\0" in run_id):
        raise RowRefused(f"a run id has 1 to {_MAX_RUN_ID} characters, none of them NUL")
    now = await database_now(session)
    merged = {**dag.params, **(params or {})}
    return await create_run(
        session, dag_id, run_type=RunType.MANUAL, run_after=now, params=merged, run_id=run_id
    )
