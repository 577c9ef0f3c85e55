"""Reads runs and their tasks for the commands and the API."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Final, cast

from sqlalchemy import ColumnElement, Select, TextClause, and_, exists, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.attempts import SparkProgress, TaskProgress
from triggerer.domain.run_logs import log_path
from triggerer.domain.runs import RunState
from triggerer.domain.text.known_fields import known_fields
from triggerer.store.listing.filters import asset_ids, limited
from triggerer.store.listing.paging import MOST_COUNTED, Count, count_rows, counted
from triggerer.store.listing.views import RunView, TaskRunView, view_of
from triggerer.store.runs.state_conditions import ACTIVE, UNSUCCESSFUL
from triggerer.store.runs.waits import RunWait, waits_of
from triggerer.store.schema.models import (
    AssetEvent,
    Dag,
    DagPartitionEvent,
    DagRun,
    QueuedAssetEvent,
    TaskRun,
)

_ENTRIES: Final = (QueuedAssetEvent, DagPartitionEvent)
"""The two tables that show which run took which event. One run's events are all in one table."""


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
    """Return runs, newest first.

    Args:
        asset: Only runs that took an event of this asset, given by name or URI. The query is slow if few of the newest
            runs took such an event, see `_with_events_of`.
        with_events: True to fill `RunView.asset_event_ids`.
    """
    found = await list_keyed_runs(
        session,
        limit=limit,
        dag=dag,
        run_id=run_id,
        asset=asset,
        state=state,
        with_events=with_events,
    )
    return [view for _, view in found]


async def list_keyed_runs(
    session: AsyncSession,
    *,
    limit: int = 100,
    after: int | None = None,
    dag: str | None = None,
    run_id: str | None = None,
    asset: str | None = None,
    state: str | None = None,
    with_events: bool = False,
) -> list[tuple[int, RunView]]:
    """Return runs as `list_runs` does, each with its primary key.

    Args:
        after: Only older runs, whose primary keys are lower than this.
    """
    query = select(DagRun).where(*_runs(dag, run_id, state)).order_by(DagRun.id.desc())
    if after is not None:
        query = query.where(DagRun.id < after)
    if asset is None:
        rows = list(await session.scalars(limited(query, limit)))
    else:
        dags = select(Dag.dag_id) if dag is None else select(Dag.dag_id).where(Dag.dag_id == dag)
        assets = await asset_ids(session, asset)
        rows = await _with_events_of(session, query, dags, assets, limit, after)
    events = await _events_of(session, [row.id for row in rows]) if with_events else {}
    waits = await waits_of(session, rows)
    return [(row.id, _run_view(row, events.get(row.id, []), waits.get(row.id))) for row in rows]


async def list_chosen_runs(session: AsyncSession, run_pks: Select[int]) -> list[RunView]:
    """Return the runs whose primary keys `run_pks` selects, in the query's order. `run_pks` should have a limit."""
    chosen = list(await session.scalars(run_pks))
    found = await session.scalars(select(DagRun).where(DagRun.id.in_(chosen)))
    rows = {row.id: row for row in found}
    waits = await waits_of(session, list(rows.values()))
    return [_run_view(rows[pk], [], waits.get(pk)) for pk in chosen if pk in rows]


async def count_runs(
    session: AsyncSession,
    *,
    dag: str | None = None,
    run_id: str | None = None,
    asset: str | None = None,
    state: str | None = None,
) -> Count:
    """Count the runs that `list_runs` returns with these filters."""
    if asset is not None:
        found = await list_keyed_runs(
            session, limit=MOST_COUNTED + 1, dag=dag, run_id=run_id, asset=asset, state=state
        )
        return counted(len(found))
    return await count_rows(session, select(DagRun.id).where(*_runs(dag, run_id, state)))


def _runs(
    dag: str | None, run_id: str | None, state: str | None
) -> list[ColumnElement[bool] | TextClause]:
    wanted: list[ColumnElement[bool] | TextClause] = []
    if dag is not None:
        wanted.append(DagRun.dag_id == dag)
    if run_id is not None:
        wanted.append(DagRun.run_id == run_id)
    if state in ("queued", "running"):
        # With this subquery, PostgreSQL and SQLite use the partial index of active runs. With a plain condition, they
        # would read all runs by primary key, because the list is in the order of the primary key.
        active = select(DagRun.id).where(ACTIVE, DagRun.state == state)
        wanted.append(DagRun.id.in_(active))
    elif state in ("failed", "cancelled"):
        wanted += [UNSUCCESSFUL, DagRun.state == state]
    elif state is not None:
        wanted.append(DagRun.state == state)
    return wanted


async def find_run(session: AsyncSession, dag_id: str, run_id: str) -> int | None:
    """Return the run's primary key, or None if there is no such run."""
    query = select(DagRun.id).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
    found: int | None = await session.scalar(query)
    return found


async def newest_run_id(session: AsyncSession, dag_id: str) -> str | None:
    """Return the id of the newest run of this DAG, or None if the DAG has no run."""
    query = select(DagRun.run_id).where(DagRun.dag_id == dag_id).order_by(DagRun.id.desc())
    found: str | None = await session.scalar(query.limit(1))
    return found


async def list_task_runs(
    session: AsyncSession,
    dag_id: str,
    run_id: str,
    *,
    limit: int = 0,
    after: tuple[datetime | None, str] | None = None,
) -> list[TaskRunView]:
    """Return the tasks of a run: first the started tasks, sorted by start time, then the tasks that were never started.

    A task that still waits is not in the list.

    Args:
        limit: 0 means all.
        after: Only tasks after this start time and id.
    """
    query = _tasks(dag_id, run_id).order_by(
        TaskRun.started_at.is_(None), TaskRun.started_at, TaskRun.task_id
    )
    if after is not None:
        started_at, task_id = after
        if started_at is None:
            query = query.where(TaskRun.started_at.is_(None), TaskRun.task_id > task_id)
        else:
            began_later = TaskRun.started_at > started_at
            is_next = and_(TaskRun.started_at == started_at, TaskRun.task_id > task_id)
            query = query.where(or_(TaskRun.started_at.is_(None), began_later, is_next))
    rows = await session.scalars(limited(query, limit))
    return [view_of(row, TaskRunView, progress=_task_progress(row)) for row in rows]


async def count_task_runs(session: AsyncSession, *, dag: str, run_id: str) -> Count:
    """Count the tasks of a run."""
    return await count_rows(session, _tasks(dag, run_id))


def _tasks(dag_id: str, run_id: str) -> Select[TaskRun]:
    of_run = (DagRun.dag_id == dag_id, DagRun.run_id == run_id)
    return select(TaskRun).join(DagRun, DagRun.id == TaskRun.run_pk).where(*of_run)


async def _with_events_of(
    session: AsyncSession,
    query: Select[DagRun],
    dags: Select[str],
    assets: Sequence[int],
    limit: int,
    after: int | None,
) -> list[DagRun]:
    """Return the runs of `query` that took an event of one of the assets, newest first, up to `limit` runs (0: all).

    There are two ways to find these runs:

    - Read runs, newest first, and test whether each took such an event.
    - Look up the run that took the event, for each event of the assets and each DAG.

    This function reads runs in growing windows, until the look-ups seem cheaper. An index by asset and run would be
    faster, but would slow down each insert of an event.

    Args:
        dags: The ids of the DAGs to which the runs belong.
        after: Only runs with lower primary keys than this.
    """
    events = select(AssetEvent.id).where(AssetEvent.asset_id.in_(assets))
    found: list[DagRun] = []
    newest = await session.scalar(select(func.max(DagRun.id))) or 0
    upper = newest if after is None else min(newest, after - 1)
    width, entries = 100, None
    while upper > 0 and (not limit or len(found) < limit):
        page = query.where(DagRun.id <= upper)
        if entries is None and width > 100:
            entries = await _count_entries(session, dags, events, upper)
        by_way_of_events = entries is not None and entries <= width
        lower = 0 if by_way_of_events else upper - width
        some: list[DagRun] = []
        # Query the tables of `_ENTRIES` separately. In one query for both, PostgreSQL would read all of their rows.
        for one in _ENTRIES:
            if by_way_of_events:
                # The events have few queue entries, so look up all runs that took the events.
                taken = select(one.run_pk).where(
                    one.dag_id.in_(dags), one.asset_event_id.in_(events)
                )
                of_one = page.where(DagRun.id.in_(taken))
            else:
                given = exists().where(one.run_pk == DagRun.id, one.asset_id.in_(assets))
                of_one = page.where(DagRun.id > lower, given)
            some += await session.scalars(limited(of_one, limit and limit - len(found)))
        some.sort(key=lambda run: run.id, reverse=True)
        found += some[: limit - len(found)] if limit else some
        upper, width = lower, 4 * width
    return found


async def _count_entries(
    session: AsyncSession, dags: Select[str], events: Select[int], enough: int
) -> int:
    """Return an upper bound for the number of the events' queue entries: the number of events times the number of DAGs.

    Counting stops once the result exceeds `enough`.
    """
    count = await session.scalar(select(func.count()).select_from(dags.subquery())) or 1
    some = events.limit(enough // count + 1).subquery()
    return count * (await session.scalar(select(func.count()).select_from(some)) or 0)


async def _events_of(session: AsyncSession, run_pks: Sequence[int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for start in range(0, len(run_pks), 500):  # below every database's bound on parameters
        for one in _ENTRIES:
            query = (
                select(one.run_pk, one.asset_event_id)
                .where(one.run_pk.in_(run_pks[start : start + 500]))
                .order_by(one.run_pk, one.asset_event_id)
            )
            for run_pk, event_id in await session.execute(query):
                found[cast("int", run_pk)].append(event_id)
    return found


def _run_view(row: DagRun, event_ids: list[int], wait: RunWait | None) -> RunView:
    home = row.log_home
    path = None if home is None else log_path(home, row.dag_id, row.run_id)
    return view_of(
        row,
        RunView,
        # A run is shown from the beginning of its first attempt, so that its duration covers all attempts.
        started_at=row.first_started_at or row.started_at,
        log_path=path,
        waiting_for=None if wait is None else wait.reason,
        waiting_since=None if wait is None else wait.since,
        progress=_progress(row),
        asset_event_ids=event_ids,
    )


def _task_progress(row: TaskRun) -> TaskProgress | None:
    return None if row.progress is None else TaskProgress.from_text(row.progress)


def _progress(row: DagRun) -> SparkProgress | None:
    is_current = row.state == RunState.RUNNING and row.progress is not None
    if not is_current or not row.progress:
        return None
    return SparkProgress(**known_fields(SparkProgress, json.loads(row.progress)))
