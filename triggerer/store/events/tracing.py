"""Follows an asset event: to its stream, to the runs that took it, and to the events that these runs emitted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import func, null, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.events.listing import list_asset_events, list_events_by_id
from triggerer.store.listing.views import AssetEventView, RunView, TaskRunView
from triggerer.store.runs.listing import list_runs, list_task_runs
from triggerer.store.schema.models import (
    AssetEvent,
    Dag,
    DagPartitionEvent,
    DagRun,
    QueuedAssetEvent,
)
from triggerer.store.watchers.listing import streams_of_watchers

_RUNS_SHOWN: Final = 20
_EVENTS_SHOWN: Final = 50


@dataclass(frozen=True, slots=True)
class TracedRun:
    """A run that took the event."""

    run: RunView
    part: str
    """`triggered`: the event is the newest one that the run took. `included`: the run also took newer events."""
    tasks: list[TaskRunView]
    events: list[AssetEventView]
    """The first events that the run emitted, oldest first, at most 50."""


@dataclass(frozen=True, slots=True)
class WaitingDag:
    """A DAG for which the event still waits. `triggerer why-not` shows the reason."""

    dag_id: str
    is_paused: bool
    partition_key: str | None


@dataclass(frozen=True, slots=True)
class Trace:
    """Where an event came from, and which runs took it or will take it."""

    event: AssetEventView
    stream: str | None
    """The stream that the event's watcher reads now. None: no watcher made the event, or the watcher is deleted."""
    source_run: RunView | None
    """The run that emitted the event, if it still exists."""
    runs: list[TracedRun]
    """The newest runs that took the event, at most 20."""
    waiting: list[WaitingDag]
    """First the DAGs that have the event in their queue, then the partition keys of DAGs; at most 20 of each.

    After the event was divided among partition keys, each key has an entry until a run of the key takes the event.
    """
    has_more_runs: bool


async def trace_event(session: AsyncSession, event_id: int) -> Trace | None:
    """Return the trace of an event, or None if there is no such event."""
    found = await list_asset_events(session, event_id=event_id, limit=1)
    if not found:
        return None
    event = found[0]
    stream = None
    if event.source_watcher is not None:
        of_watcher = (event.asset_name, event.source_watcher)
        stream = (await streams_of_watchers(session, [of_watcher])).get(of_watcher)
    keys = await _runs_with(session, event_id)
    traced = [
        await _traced(session, event_id, run_pk, dag_id, run_id)
        for run_pk, dag_id, run_id in keys[:_RUNS_SHOWN]
    ]
    return Trace(
        event=event,
        stream=stream,
        source_run=await _source_run(session, event),
        runs=[run for run in traced if run is not None],
        waiting=await _waiting(session, event_id),
        has_more_runs=len(keys) > _RUNS_SHOWN,
    )


async def _source_run(session: AsyncSession, event: AssetEventView) -> RunView | None:
    if event.source_dag_id is None or event.source_run_id is None:
        return None
    runs = await list_runs(session, dag=event.source_dag_id, run_id=event.source_run_id, limit=1)
    return runs[0] if runs else None


async def _runs_with(session: AsyncSession, event_id: int) -> list[tuple[int, str, str]]:
    """Return the primary key, DAG id and run id of runs that took the event, newest first.

    If more than `_RUNS_SHOWN` runs took the event, at least `_RUNS_SHOWN` + 1 of them are returned. So the caller
    learns that the trace leaves some out.
    """
    found: set[tuple[int, str, str]] = set()
    for entry in (QueuedAssetEvent, DagPartitionEvent):
        query = (
            select(DagRun.id, DagRun.dag_id, DagRun.run_id)
            .join(entry, entry.run_pk == DagRun.id)
            .where(entry.asset_event_id == event_id)
            .order_by(DagRun.id.desc())
            .limit(_RUNS_SHOWN + 1)
        )
        found |= {(pk, dag_id, run_id) for pk, dag_id, run_id in await session.execute(query)}
    return sorted(found, reverse=True)


async def _traced(
    session: AsyncSession, event_id: int, run_pk: int, dag_id: str, run_id: str
) -> TracedRun | None:
    """Return the run with its tasks and events; None if the run was deleted a moment ago."""
    found = await list_runs(session, dag=dag_id, run_id=run_id, limit=1)
    if not found:
        return None
    newest = 0
    for entry in (QueuedAssetEvent, DagPartitionEvent):
        # `+ 0` makes PostgreSQL read only the run's entries. Otherwise it would search the entries of all runs, newest
        # first, for one of this run.
        of_run = select(func.max(entry.asset_event_id + 0)).where(entry.run_pk == run_pk)
        newest = max(newest, await session.scalar(of_run) or 0)
    emitted = (
        select(AssetEvent.id)
        .where(
            AssetEvent.source_dag_id == dag_id,
            AssetEvent.source_run_id == run_id,
            # The run took the traced event before it emitted events. So the emitted events have
            # higher ids, and older events need not be read.
            AssetEvent.id > event_id,
        )
        .order_by(AssetEvent.id)
        .limit(_EVENTS_SHOWN)
    )
    return TracedRun(
        run=found[0],
        part="triggered" if newest <= event_id else "included",
        # Leave out the progress of Spark stages, because there may be many stages. The run's own page shows the stages.
        tasks=[
            replace(task, progress=None) for task in await list_task_runs(session, dag_id, run_id)
        ],
        events=await list_events_by_id(session, list(await session.scalars(emitted))),
    )


async def _waiting(session: AsyncSession, event_id: int) -> list[WaitingDag]:
    found: list[WaitingDag] = []
    no_key: Any = null()
    for entry, key in (
        (QueuedAssetEvent, no_key),
        (DagPartitionEvent, DagPartitionEvent.partition_key),
    ):
        query = (
            select(Dag.dag_id, Dag.is_paused, key)
            .join(entry, entry.dag_id == Dag.dag_id)
            .where(entry.asset_event_id == event_id, entry.run_pk.is_(None))
            .order_by(Dag.dag_id)
            .limit(_RUNS_SHOWN)
        )
        found += [WaitingDag(*row) for row in await session.execute(query)]
    return found
