"""Stores new backfills with their intervals or partition keys. The caller commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.backfills import Reprocess
from triggerer.domain.text.json_text import dump_json
from triggerer.store.backfills.states import PENDING
from triggerer.store.database.transactions import database_now
from triggerer.store.database.wakeups.signals import Signal, announce
from triggerer.store.schema.models import Backfill, BackfillInterval, BackfillKey, Dag

if TYPE_CHECKING:
    from triggerer.domain.timetables import DagRunInfo

_AT_ONCE = 500


async def lock_dag(session: AsyncSession, dag_id: str) -> None:
    """Lock the DAG's row until the commit, so that transactions that start backfills of the DAG take turns.

    Transactions that only insert a run of the DAG are not blocked.
    """
    await session.execute(
        select(Dag.dag_id).where(Dag.dag_id == dag_id).with_for_update(key_share=True)
    )


async def insert_backfill(
    session: AsyncSession,
    dag_id: str,
    infos: Sequence[tuple[DagRunInfo, str | None]],
    *,
    from_date: datetime,
    to_date: datetime,
    reprocess: Reprocess,
    max_active: int,
    params: Mapping[str, Any] | None = None,
) -> int:
    """Store a backfill with its intervals, all pending; return its id.

    Args:
        infos: The runs to create, in order, each with its partition key or None.
        reprocess: Which runs to repeat, if an interval already has an ended run: no runs, failed runs, or all runs.
        max_active: The most runs of the backfill that may be queued or running at the same time.
        params: Parameters that replace the DAG's parameters of the same names, or None.
    """
    row = Backfill(
        dag_id=dag_id,
        from_date=from_date,
        to_date=to_date,
        reprocess=reprocess.value,
        max_active=max_active,
        params=_checked_params(params),
        created_at=await database_now(session),
    )
    session.add(row)
    await session.flush()
    intervals = [
        {
            "backfill_id": row.id,
            "number": number,
            "logical_date": info.logical_date,
            "data_interval_start": info.data_interval.start,
            "data_interval_end": info.data_interval.end,
            "run_after": info.run_after,
            "partition_key": key,
            "state": PENDING,
        }
        for number, (info, key) in enumerate(infos)
    ]
    for start in range(0, len(intervals), _AT_ONCE):
        await session.execute(insert(BackfillInterval), intervals[start : start + _AT_ONCE])
    announce(session, Signal.BACKFILLS_CHANGED, dag_id)
    return row.id


async def insert_key_backfill(
    session: AsyncSession,
    dag_id: str,
    keys: Sequence[str],
    *,
    reprocess: Reprocess,
    max_active: int,
    params: Mapping[str, Any] | None = None,
) -> int:
    """Store a backfill with its partition keys, all pending; return its id.

    Args:
        keys: The partition keys of the runs to create, in order.
        reprocess, max_active, params: The arguments of `insert_backfill`.
    """
    now = await database_now(session)
    row = Backfill(
        dag_id=dag_id,
        from_date=now,
        to_date=now,
        reprocess=reprocess.value,
        max_active=max_active,
        params=_checked_params(params),
        created_at=now,
    )
    session.add(row)
    await session.flush()
    rows = [
        {"backfill_id": row.id, "number": number, "partition_key": key, "state": PENDING}
        for number, key in enumerate(keys)
    ]
    for start in range(0, len(rows), _AT_ONCE):
        await session.execute(insert(BackfillKey), rows[start : start + _AT_ONCE])
    announce(session, Signal.BACKFILLS_CHANGED, dag_id)
    return row.id


def _checked_params(params: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Raises: RowRefused: A parameter has no JSON form."""
    if params is None:
        return None
    dump_json(given := dict(params), "a param of the backfill")
    return given
