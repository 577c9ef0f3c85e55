"""Runs and their tasks as the commands show them; see `triggerer.store.queries.listing`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, cast

from sqlalchemy import Select, exists, func, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.logs import log_path
from triggerer.domain.runs import RunState
from triggerer.store.models import AssetEvent, Dag, DagRun, QueuedAssetEvent, TaskRun
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
    """Return runs, newest first; `asset` leaves those that were given an event of it, see `_given`."""
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
    if asset is None:
        rows = list(await session.scalars(limited(query, limit)))
    else:
        dags = select(Dag.dag_id) if dag is None else select(Dag.dag_id).where(Dag.dag_id == dag)
        rows = await _given(session, query, dags, await asset_ids(session, asset), limit)
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
        .order_by(TaskRun.started_at.is_(None), TaskRun.started_at, TaskRun.task_id)
    )
    return [
        TaskRunView(row.task_id, row.state, row.try_number, row.started_at, row.ended_at, row.error)
        for row in await session.scalars(query)
    ]


# The partial indexes' own words, with no parameter in them: only those does SQLite recognise.
_ACTIVE: Final = text("dag_run.state IN ('queued', 'running')")
_UNSUCCESSFUL: Final = text("dag_run.state IN ('failed', 'cancelled')")


async def _given(
    session: AsyncSession,
    query: Select[DagRun],
    dags: Select[str],
    assets: Sequence[int],
    limit: int,
) -> list[DagRun]:
    """Return the runs of a query, which are of these DAGs, that were given an event of one of the assets.

    Takes a few times as long as what is less: to look at each of the assets' events once for each DAG, or at each run
    that is newer than the page's last. An asset with a long history that no run has been given lately has much of both:
    the index that would have its runs in order would be paid for by each event that a run takes.
    """
    given = exists().where(
        QueuedAssetEvent.run_pk == DagRun.id, QueuedAssetEvent.asset_id.in_(assets)
    )
    events = select(AssetEvent.id).where(AssetEvent.asset_id.in_(assets))
    found: list[DagRun] = []
    upper = await session.scalar(select(func.max(DagRun.id))) or 0
    width, looks = 100, None
    while upper > 0 and (not limit or len(found) < limit):
        stretch = query.where(DagRun.id <= upper)
        if looks is None and width > 100:
            looks = await _looks(session, dags, events, upper)
        if looks is not None and looks <= width:
            # What is left of the runs by way of the events.
            runs = select(QueuedAssetEvent.run_pk).where(
                QueuedAssetEvent.dag_id.in_(dags), QueuedAssetEvent.asset_event_id.in_(events)
            )
            stretch = stretch.where(DagRun.id.in_(runs))
            lower = 0
        else:
            lower = upper - width
            stretch = stretch.where(DagRun.id > lower, given)
        found += await session.scalars(limited(stretch, limit and limit - len(found)))
        upper, width = lower, 4 * width
    return found


async def _looks(session: AsyncSession, dags: Select[str], events: Select[int], enough: int) -> int:
    """How many queue entries there may be of these events; from `enough` on it is not counted exactly."""
    count = await session.scalar(select(func.count()).select_from(dags.subquery())) or 1
    some = events.limit(enough // count + 1).subquery()
    return count * (await session.scalar(select(func.count()).select_from(some)) or 0)


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
    is_running = row.state == RunState.RUNNING
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
        waiting_for=row.waiting_for if is_running else None,
        waiting_since=row.waiting_since if is_running else None,
        asset_event_ids=event_ids,
    )
