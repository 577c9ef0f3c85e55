"""Deletes a stale DAG: first its runs, a few hundred at a time, then its own row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import delete, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.runs import RunState
from triggerer.store.database.script import perform
from triggerer.store.events.cleaning import release_keys
from triggerer.store.partitions.keys import DIVIDED
from triggerer.store.schema.models import (
    AssetEvent,
    Backfill,
    BackfillInterval,
    BackfillKey,
    Dag,
    DagPartition,
    DagPartitionEvent,
    DagPartitionPart,
    DagRun,
    DagScheduleAlias,
    DagScheduleAsset,
    QueuedAssetEvent,
    RunAttempt,
    RunLaunch,
    TaskRun,
)

_CALLBACK_RUNNING: Final = "running"


@dataclass(frozen=True, slots=True)
class DagUse:
    """The facts that decide whether a DAG can be deleted. Only a stale DAG without a busy run can be deleted."""

    path: str
    is_stale: bool
    runs: int
    busy_run: str | None
    """An unfinished run, or a run whose callback is running."""


async def use_of_dag(session: AsyncSession, dag_id: str) -> DagUse | None:
    """Return the facts that decide whether a DAG may be deleted, or None if there is no such DAG."""
    query = select(Dag.path, Dag.is_stale).where(Dag.dag_id == dag_id)
    found = (await session.execute(query)).one_or_none()
    if found is None:
        return None
    busy = or_(
        DagRun.state.in_((RunState.QUEUED, RunState.RUNNING)), DagRun.callback == _CALLBACK_RUNNING
    )
    return DagUse(
        found.path,
        found.is_stale,
        await session.scalar(select(func.count()).where(DagRun.dag_id == dag_id)) or 0,
        await session.scalar(
            select(DagRun.run_id).where(DagRun.dag_id == dag_id, busy).order_by(DagRun.id).limit(1)
        ),
    )


async def delete_some_runs(
    session: AsyncSession, dag_id: str, *, limit: int
) -> Sequence[tuple[str, str | None]]:
    """Delete up to `limit` runs of a DAG, with their tasks, attempts and queue entries.

    Returns:
        For each deleted run, its id, and the folder of its log on the executor's machine (None if it has no log).
    """
    rows = await session.execute(
        select(DagRun.id, DagRun.run_id, DagRun.log_home)
        .where(DagRun.dag_id == dag_id)
        .order_by(DagRun.id)
        .limit(limit)
        .with_for_update()
    )
    found = [(pk, run_id, log_home) for pk, run_id, log_home in rows]
    pks = [pk for pk, *_ in found]
    for of_run in (TaskRun, RunLaunch, RunAttempt, QueuedAssetEvent, DagPartitionEvent):
        await session.execute(delete(of_run).where(of_run.run_pk.in_(pks)))
    await session.execute(delete(DagRun).where(DagRun.id.in_(pks)))
    return [(run_id, log_home) for _, run_id, log_home in found]


async def release_some_keys(
    session: AsyncSession, dag_id: str, *, after: int, limit: int
) -> int | None:
    """Replace the idempotency keys of events that a DAG's tasks emitted.

    The tasks of a later DAG with the same id may emit events with the old keys. If the old events kept these keys, the
    store would drop the new events as duplicates.

    Args:
        after: Only events with higher ids than this.
        limit: How many events to change in this call.
    Returns:
        The id of the last changed event, for the next call, or None if there were no further events.
    """
    found = await session.scalars(
        select(AssetEvent.id)
        .where(AssetEvent.source_dag_id == dag_id, AssetEvent.id > after)
        .order_by(AssetEvent.id)
        .limit(limit)
    )
    if not (event_ids := list(found)):
        return None
    await perform(session, release_keys(event_ids))
    return event_ids[-1]


async def delete_dag_row(session: AsyncSession, dag_id: str) -> None:
    """Delete a DAG's row, queued events, partition keys, backfills and schedule. The DAG must have no runs left."""
    backfills = select(Backfill.id).where(Backfill.dag_id == dag_id)
    for part in (BackfillInterval, BackfillKey):
        await session.execute(delete(part).where(part.backfill_id.in_(backfills)))
    for entries in (QueuedAssetEvent.run_pk.is_(None), QueuedAssetEvent.run_pk == DIVIDED):
        await session.execute(
            delete(QueuedAssetEvent).where(QueuedAssetEvent.dag_id == dag_id, entries)
        )
    for of_dag in (
        Backfill,
        DagPartitionEvent,
        DagPartitionPart,
        DagPartition,
        DagScheduleAsset,
        DagScheduleAlias,
        Dag,
    ):
        await session.execute(delete(of_dag).where(of_dag.dag_id == dag_id))
