"""DAGs that are scheduled by partition keys, their events, and what became of them."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import select

from tests.store.seeding import add_asset, add_dag
from triggerer.domain.assets import Asset
from triggerer.domain.schedules import schedule_of, schedule_to_json
from triggerer.partitions import (
    DayWindow,
    FanOutMapper,
    MonthWindow,
    RollupMapper,
    StartOfDayMapper,
    StartOfMonthMapper,
    WaitPolicy,
)
from triggerer.store.database.transactions import Database
from triggerer.store.events.emit import NewAssetEvent, record_events
from triggerer.store.schema.models import DagPartition, DagPartitionEvent, DagPartitionPart, DagRun
from triggerer.timetables import PartitionedAssetTimetable

DAY = "2026-03-10"
HOURS = [f"{DAY}T{hour:02}" for hour in range(24)]


def asset(name: str) -> Asset:
    return Asset(f"x-test://{name}", name=name)


def partitioned(assets: Any, **arguments: Any) -> dict[str, Any]:
    """Return a partitioned schedule in its stored form."""
    found = schedule_of(PartitionedAssetTimetable(assets=assets, **arguments))
    assert found is not None
    return schedule_to_json(found)


def day_of_hours(policy: WaitPolicy | None = None) -> RollupMapper:
    hours = StartOfDayMapper(input_format="%Y-%m-%dT%H")
    if policy is None:
        return RollupMapper(upstream_mapper=hours, window=DayWindow())
    return RollupMapper(upstream_mapper=hours, window=DayWindow(), wait_policy=policy)


async def daily(
    database: Database, *, policy: WaitPolicy | None = None, dag_id: str = "daily", **columns: Any
) -> None:
    """Add the asset `hours` (id 1), and a DAG that runs once for each day of hours."""
    await add_asset(database, 1, "hours")
    schedule = partitioned(asset("hours"), default_partition_mapper=day_of_hours(policy))
    await add_dag(database, dag_id, schedule, assets=[1], **columns)


async def days_of_months(database: Database, dag_id: str, **columns: Any) -> None:
    """Add the asset `months` (id 1), and a DAG that runs for each day of a month."""
    await add_asset(database, 1, "months")
    days = FanOutMapper(
        upstream_mapper=StartOfMonthMapper(input_format="%Y-%m"), window=MonthWindow()
    )
    schedule = partitioned(asset("months"), default_partition_mapper=days)
    await add_dag(database, dag_id, schedule, assets=[1], **columns)


async def emit_keys(
    database: Database,
    keys: Iterable[str | None],
    *,
    asset_id: int = 1,
    at: datetime | None = None,
) -> list[int]:
    """Add an event for each of these keys, in one transaction; return the ids."""
    events = [NewAssetEvent(asset_id, partition_key=key, timestamp=at) for key in keys]
    async with database.transaction() as session:
        return await record_events(session, events)


async def keyed_runs(database: Database, dag_id: str) -> list[tuple[str | None, list[int]]]:
    """Return (key, ids of the events) of each run, oldest first."""
    async with database.reading() as session:
        runs = await session.execute(
            select(DagRun.id, DagRun.partition_key)
            .where(DagRun.dag_id == dag_id)
            .order_by(DagRun.id)
        )
        found = []
        for pk, key in runs.all():
            events = await session.scalars(
                select(DagPartitionEvent.asset_event_id)
                .where(DagPartitionEvent.run_pk == pk)
                .order_by(DagPartitionEvent.asset_event_id)
            )
            found.append((key, list(events)))
        return found


async def waiting_shares(database: Database, dag_id: str) -> list[tuple[str, int]]:
    """Return (key, event id) of each share that waits, in order."""
    async with database.reading() as session:
        rows = await session.execute(
            select(DagPartitionEvent.partition_key, DagPartitionEvent.asset_event_id)
            .where(DagPartitionEvent.dag_id == dag_id, DagPartitionEvent.run_pk.is_(None))
            .order_by(DagPartitionEvent.partition_key, DagPartitionEvent.asset_event_id)
        )
        return [(key, event) for key, event in rows]


async def stored_keys(database: Database, dag_id: str) -> Sequence[DagPartition]:
    async with database.reading() as session:
        found = select(DagPartition).where(DagPartition.dag_id == dag_id)
        return (await session.scalars(found.order_by(DagPartition.partition_key))).all()


async def stored_parts(database: Database, dag_id: str) -> list[tuple[str, str]]:
    async with database.reading() as session:
        rows = await session.execute(
            select(DagPartitionPart.partition_key, DagPartitionPart.part)
            .where(DagPartitionPart.dag_id == dag_id)
            .order_by(DagPartitionPart.partition_key, DagPartitionPart.part)
        )
        return [(key, part) for key, part in rows]
