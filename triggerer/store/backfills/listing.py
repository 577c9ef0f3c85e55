"""Reads backfills, and finds the runs that already exist for logical dates and partition keys."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import exists, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.runs import ACTIVE_STATES, RunState
from triggerer.store.backfills.states import PENDING, STARTED
from triggerer.store.listing.filters import limited, waits_for
from triggerer.store.listing.paging import MOST_COUNTED, Count, counted
from triggerer.store.listing.views import BackfillView
from triggerer.store.schema.models import Backfill, BackfillInterval, BackfillKey, DagRun

_AT_ONCE = 500


async def list_backfills(
    session: AsyncSession,
    *,
    limit: int = 100,
    after: int | None = None,
    dag: str | None = None,
    asset: str | None = None,
    state: str | None = None,
    backfill_id: int | None = None,
) -> list[BackfillView]:
    """Return backfills, newest first, with their progress.

    Args:
        after: Only older backfills, whose ids are lower than this id.
        asset: Only backfills of DAGs whose schedule names this asset.
        state: A state of `BackfillView`.
    """
    query = select(Backfill).order_by(Backfill.id.desc())
    if dag is not None:
        query = query.where(Backfill.dag_id == dag)
    if asset is not None:
        query = query.where(waits_for(Backfill.dag_id, asset))
    if backfill_id is not None:
        query = query.where(Backfill.id == backfill_id)
    if after is not None:
        query = query.where(Backfill.id < after)
    if state is None:
        query = limited(query, limit)
    views: list[BackfillView] = []
    for row in list(await session.scalars(query)):
        intervals = await _counts(session, BackfillInterval, row.id)
        keys = await _counts(session, BackfillKey, row.id)
        own = await _counts(session, DagRun, row.id)
        found = _state(row, intervals or keys, own)
        if state not in (None, found):
            continue
        runs = await _count_started_runs(session, BackfillKey if keys else BackfillInterval, row.id)
        views.append(
            BackfillView(
                id=row.id,
                dag_id=row.dag_id,
                state=found,
                from_date=None if keys else row.from_date,
                to_date=None if keys else row.to_date,
                reprocess=row.reprocess,
                max_active=row.max_active,
                params=row.params,
                created_at=row.created_at,
                cancelled_at=row.cancelled_at,
                intervals=intervals,
                partition_keys=keys,
                runs=runs,
            )
        )
        if len(views) == limit:
            break
    return views


async def count_backfills(session: AsyncSession, **filters: Any) -> Count:
    """Count the backfills that `list_backfills` returns with these filters."""
    return counted(len(await list_backfills(session, limit=MOST_COUNTED + 1, **filters)))


async def unfinished_backfill(session: AsyncSession, dag_id: str) -> int | None:
    """Return the id of the DAG's newest backfill in the state `running`, or None if there is none."""
    parts = [
        exists().where(part.backfill_id == Backfill.id, part.state == PENDING)
        for part in (BackfillInterval, BackfillKey)
    ]
    is_active = DagRun.state.in_([state.value for state in ACTIVE_STATES])
    found: int | None = await session.scalar(
        select(Backfill.id)
        .where(Backfill.dag_id == dag_id, Backfill.cancelled_at.is_(None))
        .where(or_(*parts, exists().where(DagRun.backfill_id == Backfill.id, is_active)))
        .order_by(Backfill.id.desc())
        .limit(1)
    )
    return found


async def existing_runs(
    session: AsyncSession, dag_id: str, start: datetime, end: datetime
) -> dict[datetime, tuple[str, RunState]]:
    """Return the newest run (id, state) of each logical date between two instants. Dates without a run are left out."""
    rows = await session.execute(
        select(DagRun.logical_date, DagRun.run_id, DagRun.state)
        .where(DagRun.dag_id == dag_id, DagRun.logical_date.between(start, end))
        .order_by(DagRun.id)
    )
    return {at: (run_id, RunState(state)) for at, run_id, state in rows if at is not None}


async def runs_of_keys(
    session: AsyncSession, dag_id: str, keys: Sequence[str]
) -> dict[str, tuple[str, RunState]]:
    """Return the newest run (id, state) of each partition key. Keys without a run are left out."""
    found: dict[str, tuple[int, str, str]] = {}
    for start in range(0, len(keys), _AT_ONCE):
        # ORDER BY id would make SQLite read all runs of the DAG, instead of looking up the partition keys in their
        # index.
        rows = await session.execute(
            select(DagRun.partition_key, DagRun.id, DagRun.run_id, DagRun.state)
            .where(DagRun.dag_id == dag_id)
            .where(DagRun.partition_key.in_(keys[start : start + _AT_ONCE]))
        )
        for key, pk, run_id, state in rows:
            if key is not None:
                found[key] = max(found.get(key, (0, "", "")), (pk, run_id, state))
    return {key: (run_id, RunState(state)) for key, (_, run_id, state) in found.items()}


async def _counts(
    session: AsyncSession, kind: type[BackfillInterval | BackfillKey | DagRun], backfill_id: int
) -> dict[str, int]:
    rows = await session.execute(
        select(kind.state, func.count()).where(kind.backfill_id == backfill_id).group_by(kind.state)
    )
    return {row[0]: row[1] for row in rows}


async def _count_started_runs(
    session: AsyncSession, kind: type[BackfillInterval | BackfillKey], backfill_id: int
) -> dict[str, int]:
    """Return the number of runs that a backfill created or repeated, by their current state.

    Runs that a later backfill has repeated are included.
    """
    rows = await session.execute(
        select(DagRun.state, func.count())
        .join(kind, kind.run_pk == DagRun.id)
        .where(kind.backfill_id == backfill_id, kind.state == STARTED)
        .group_by(DagRun.state)
    )
    return {row[0]: row[1] for row in rows}


def _state(row: Backfill, intervals: dict[str, int], runs: dict[str, int]) -> str:
    if row.cancelled_at is not None:
        return "cancelled"
    is_active = any(runs.get(state.value) for state in ACTIVE_STATES)
    return "running" if is_active or intervals.get(PENDING) else "done"
