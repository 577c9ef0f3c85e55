"""Runs and their tasks as the commands show them; see `triggerer.store.queries.listing`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, cast

from sqlalchemy import exists, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.logs import log_path
from triggerer.store.models import DagRun, QueuedAssetEvent, TaskRun
from triggerer.store.queries.filters import asset_ids, limited
from triggerer.store.queries.views import RunView, TaskRunView


async def list_runs(
    session: AsyncSession,
    *,
    limit: int = 100,
    dag: str | None = None,
    run_id: str | None = None,
    asset: str | None = None,
    state: str | None = None,
    with_events: bool = False,
) -> list[RunView]:
    """Return runs, newest first; `asset` leaves those that were given an event of it.

    That one goes through all runs that are newer than the page's last.
    """
    query = select(DagRun).order_by(DagRun.id.desc())
    if dag is not None:
        query = query.where(DagRun.dag_id == dag)
    if run_id is not None:
        query = query.where(DagRun.run_id == run_id)
    if state in ("queued", "running"):
        # Apart from the rest: the planners would sooner go through all runs, which come in the right order.
        active = select(DagRun.id).where(_ACTIVE, DagRun.state == state)
        query = query.where(DagRun.id.in_(active))
    elif state in ("failed", "cancelled"):
        query = query.where(_UNSUCCESSFUL, DagRun.state == state)
    elif state is not None:
        query = query.where(DagRun.state == state)
    if asset is not None:
        query = query.where(
            exists()
            .where(QueuedAssetEvent.run_pk == DagRun.id)
            .where(QueuedAssetEvent.asset_id.in_(await asset_ids(session, asset)))
        )
    rows = list(await session.scalars(limited(query, limit)))
    events = await _events_of(session, [row.id for row in rows]) if with_events else {}
    return [_run_view(row, events.get(row.id, [])) for row in rows]


async def find_run(session: AsyncSession, dag_id: str, run_id: str) -> int | None:
    """Return the key by which the executor knows the run; None: there is no such run."""
    query = select(DagRun.id).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
    found: int | None = await session.scalar(query)
    return found


async def list_task_runs(session: AsyncSession, dag_id: str, run_id: str) -> list[TaskRunView]:
    """Return the tasks of a run in the order in which they began."""
    query = (
        select(TaskRun)
        .join(DagRun, DagRun.id == TaskRun.run_pk)
        .where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
    )
    rows = sorted(
        await session.scalars(query), key=lambda row: (str(row.started_at or "~"), row.task_id)
    )
    return [
        TaskRunView(row.task_id, row.state, row.try_number, row.started_at, row.ended_at, row.error)
        for row in rows
    ]


# The partial indexes' own words, with no parameter in them: only those does SQLite recognise.
_ACTIVE: Final = text("dag_run.state IN ('queued', 'running')")
_UNSUCCESSFUL: Final = text("dag_run.state IN ('failed', 'cancelled')")


async def _events_of(session: AsyncSession, run_pks: Sequence[int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for start in range(0, len(run_pks), 500):  # below every database's bound on parameters
        query = (
            select(QueuedAssetEvent.run_pk, QueuedAssetEvent.asset_event_id)
            .where(QueuedAssetEvent.run_pk.in_(run_pks[start : start + 500]))
            .order_by(QueuedAssetEvent.run_pk, QueuedAssetEvent.asset_event_id)
        )
        for run_pk, event_id in await session.execute(query):
            found[cast("int", run_pk)].append(event_id)
    return found


def _run_view(row: DagRun, event_ids: list[int]) -> RunView:
    return RunView(
        dag_id=row.dag_id,
        run_id=row.run_id,
        run_type=row.run_type,
        state=row.state,
        logical_date=row.logical_date,
        data_interval_start=row.data_interval_start,
        data_interval_end=row.data_interval_end,
        run_after=row.run_after,
        queued_at=row.queued_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        error=row.error,
        params=row.params,
        exit_code=row.exit_code,
        attempt=row.attempt,
        executor=row.executor,
        log_path=None if row.log_home is None else log_path(row.log_home, row.dag_id, row.run_id),
        asset_event_ids=event_ids,
    )
