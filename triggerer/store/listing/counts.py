"""Counts rows, to show the numbers and to check that no event was lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.runs import RunState
from triggerer.store.schema.models import (
    Asset,
    AssetEvent,
    DagFile,
    DagRun,
    QueuedAssetEvent,
    TaskRun,
    Watcher,
)


@dataclass(frozen=True, slots=True)
class Counts:
    """The numbers of rows. A key whose number is zero is missing."""

    events: Mapping[str, int] = field(default_factory=dict)
    """Asset events by asset name."""
    waiting: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Events that wait in the queues of DAGs, by DAG id and asset name.

    An event that was divided among partition keys has left the queue, and is not counted.
    """
    runs: Mapping[tuple[str, RunState], int] = field(default_factory=dict)
    tasks: int = 0
    """Tasks that have begun. A task that takes less than half a second counts only once it has ended."""
    watchers: Mapping[str, tuple[str, str | None]] = field(default_factory=dict)
    """The state and error of one watcher of each asset, by asset name."""
    file_errors: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class AssetCounts:
    """The numbers of one asset's events, for one DAG that waits for the asset."""

    events: int
    different: int
    """The number of different idempotency keys. A message that was recorded twice counts only once here."""
    in_successful_runs: int
    """The events that successful runs of the DAG have taken."""
    waiting: int
    """The events that wait in the DAG's queue."""


class EventInRun(NamedTuple):
    """An event that a run took."""

    sent: Any
    """The field `timestamp` of the event's payload: when the message was sent."""
    run_id: str
    queued_at: datetime
    """When the run was queued."""


async def count_all(session: AsyncSession) -> Counts:
    """Count events, runs, tasks and watchers. This reads an index of all events, so call it rarely.

    The counts agree exactly with each other only in a session that reads from one snapshot. Otherwise, on PostgreSQL,
    other transactions may commit between the queries.
    """
    events = (
        select(Asset.name, func.count(AssetEvent.id))
        .join(AssetEvent, AssetEvent.asset_id == Asset.id)
        .group_by(Asset.name)
    )
    waiting = (
        select(QueuedAssetEvent.dag_id, Asset.name, func.count())
        .join(Asset, Asset.id == QueuedAssetEvent.asset_id)
        .where(QueuedAssetEvent.run_pk.is_(None))
        .group_by(QueuedAssetEvent.dag_id, Asset.name)
    )
    runs = select(DagRun.dag_id, DagRun.state, func.count()).group_by(DagRun.dag_id, DagRun.state)
    watchers = (
        select(Asset.name, Watcher.state, Watcher.error)
        .join(Asset, Asset.id == Watcher.asset_id)
        .where(Watcher.trigger_id.is_not(None))
    )
    tasks = select(func.count()).where(TaskRun.started_at.is_not(None))
    files = await session.scalars(select(DagFile.errors))
    return Counts(
        events={row[0]: row[1] for row in await session.execute(events)},
        waiting={(dag, name): count for dag, name, count in await session.execute(waiting)},
        runs={(dag, RunState(state)): count for dag, state, count in await session.execute(runs)},
        tasks=await _number(session, tasks),
        watchers={name: (state, error) for name, state, error in await session.execute(watchers)},
        file_errors=tuple(error for errors in files for error in errors),
    )


async def count_asset(session: AsyncSession, *, asset: str, dag_id: str) -> AssetCounts:
    """Count the asset's events, the events that the DAG's successful runs took, and the events that still wait."""
    asset_id = await session.scalar(select(Asset.id).where(Asset.name == asset))
    of_asset = AssetEvent.asset_id == asset_id
    queued = (QueuedAssetEvent.asset_id == asset_id, QueuedAssetEvent.dag_id == dag_id)
    in_runs = (
        select(func.count(QueuedAssetEvent.asset_event_id.distinct()))
        .join(DagRun, DagRun.id == QueuedAssetEvent.run_pk)
        .where(*queued, DagRun.state == RunState.SUCCESS.value)
    )
    return AssetCounts(
        events=await _number(session, select(func.count()).where(of_asset)),
        different=await _number(
            session, select(func.count(AssetEvent.idempotency_key.distinct())).where(of_asset)
        ),
        in_successful_runs=await _number(session, in_runs),
        waiting=await _number(
            session, select(func.count()).where(*queued, QueuedAssetEvent.run_pk.is_(None))
        ),
    )


async def events_in_runs(session: AsyncSession, *, dag_id: str) -> list[EventInRun]:
    """Return each event of each run of the DAG, unsorted."""
    query = (
        select(AssetEvent.extra["timestamp"], DagRun.run_id, DagRun.queued_at)
        .join(QueuedAssetEvent, QueuedAssetEvent.asset_event_id == AssetEvent.id)
        .join(DagRun, DagRun.id == QueuedAssetEvent.run_pk)
        .where(DagRun.dag_id == dag_id)
    )
    return [EventInRun(*row) for row in await session.execute(query)]


async def _number(session: AsyncSession, query: Any) -> int:
    return int(await session.scalar(query) or 0)
