"""Finds old backfills whose runs are all gone, and deletes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from sqlalchemy import delete, exists, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.runs.cleaning import NeededRuns
from triggerer.store.schema.models import Backfill, BackfillInterval, BackfillKey, DagRun


async def old_backfills(
    session: AsyncSession,
    before: datetime,
    *,
    needed: Mapping[str, NeededRuns],
    unfinished: Collection[int],
    removed: Collection[int],
) -> list[int]:
    """Return the ids of the backfills that may be deleted: they are older than `before`, and all their runs are gone.

    A backfill is kept if it covers intervals that the DAG's timetable has not passed yet. Otherwise the timetable would
    create runs for these intervals again.

    Args:
        needed: The `NeededRuns` of each DAG, which show how far the DAG's timetable has come.
        unfinished: Ids of backfills that still have runs to create. These backfills are kept.
        removed: Primary keys of the runs that this cleaning deletes. They count as gone, even if their rows still
            exist.
    """
    rows = await session.execute(
        select(
            Backfill.id,
            Backfill.dag_id,
            Backfill.to_date,
            exists().where(BackfillInterval.backfill_id == Backfill.id),
        )
        .where(Backfill.created_at < before)
        .order_by(Backfill.id)
    )
    found = []
    for pk, dag_id, to_date, has_intervals in rows:
        since = needed[dag_id].since if dag_id in needed else None
        if pk in unfinished or (has_intervals and (since is None or to_date >= since)):
            continue
        runs = await session.scalars(select(DagRun.id).where(DagRun.backfill_id == pk))
        if all(run in removed for run in runs):
            found.append(pk)
    return found


async def delete_backfill(session: AsyncSession, pk: int) -> bool:
    """Delete a backfill with its intervals and keys, unless it has runs; return True if it was deleted."""
    if await session.scalar(select(exists().where(DagRun.backfill_id == pk))):
        return False
    for part in (BackfillInterval, BackfillKey):
        await session.execute(delete(part).where(part.backfill_id == pk))
    await session.execute(delete(Backfill).where(Backfill.id == pk))
    return True
