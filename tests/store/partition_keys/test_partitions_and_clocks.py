"""Partition keys when the database's clock is set back: no key waits until the clock has caught up."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import select

from tests.store.partitions import (
    HOURS,
    asset,
    daily,
    emit_keys,
    keyed_runs,
    partitioned,
    stored_keys,
)
from tests.store.scheduling import end, set_columns
from tests.store.seeding import add_asset, add_dag, runs_of
from triggerer.partitions import FixedKeyMapper, RollupMapper, SegmentWindow, WaitUntil
from triggerer.scheduler import Scheduler, dividing
from triggerer.scheduler.explaining import WhyNot, why_not
from triggerer.store.database.opening import open_database
from triggerer.store.database.transactions import Database
from triggerer.store.schema.models import AssetEvent, Dag, DagPartition, DagPartitionPart
from triggerer.store.schema.models.dags import NEVER

HOUR = timedelta(hours=1)
TIMES = (
    (AssetEvent, "timestamp"),
    (Dag, "next_run_after"),
    (DagPartition, "due_at"),
    (DagPartition, "newest_at"),
    (DagPartition, "noted_at"),
    (DagPartitionPart, "first_at"),
)


async def _set_back(database: Database) -> None:
    """Add an hour to all stored instants, as if the clock had been set back by an hour.

    A scheduler remembers when the DAGs are due, so a test then needs a new scheduler.
    """
    async with database.transaction() as session:
        for model, name in TIMES:
            for row in await session.scalars(select(model)):
                at: datetime | None = getattr(row, name)
                if at is not None and at < NEVER:
                    setattr(row, name, at + HOUR)


async def _by_key(database: Database, **columns: object) -> None:
    await add_asset(database, 1, "a")
    await add_dag(database, "by_key", partitioned(asset("a")), assets=[1], **columns)


async def _why_not(database: Database) -> WhyNot:
    async with database.reading() as session:
        return await why_not(session, "by_key")


async def test_a_key_that_was_due_and_held_back_is_due_at_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dividing, "MOST_EVENTS", 4)
    await _by_key(database, max_active_runs=1)
    scheduler = Scheduler(database)
    await emit_keys(database, ["x"])
    assert await scheduler.run_once() == 1
    keys = [f"k{number}" for number in range(9)]
    for key in keys:
        await emit_keys(database, [key])
        assert await scheduler.run_once() == 0
    await _set_back(database)
    await end(database, *await runs_of(database, "by_key"))
    await set_columns(database, "by_key", max_active_runs=100)
    assert (await _why_not(database)).runs_due > 0
    assert await Scheduler(database).run_once() == len(keys)
    assert {key for key, _ in await keyed_runs(database, "by_key")} == {"x", *keys}


async def test_a_key_that_was_due_is_not_passed_by_all_that_come_after_the_clock_was_set_back(
    database: Database,
) -> None:
    """More keys are due than the scheduler creates runs for at once (`max_dagruns_to_create_per_loop`)."""
    await _by_key(database, max_active_runs=1)
    scheduler = Scheduler(database, max_dagruns_to_create_per_loop=2)
    await emit_keys(database, ["x"])
    assert await scheduler.run_once() == 1
    await emit_keys(database, ["before"])
    assert await scheduler.run_once() == 0
    await _set_back(database)
    await emit_keys(database, [f"k{number}" for number in range(9)])
    scheduler = Scheduler(database, max_dagruns_to_create_per_loop=2)
    assert await scheduler.run_once() == 0
    await emit_keys(database, ["after"])
    assert await scheduler.run_once() == 0
    moments = {one.partition_key: one.due_at for one in await stored_keys(database, "by_key")}
    assert moments["before"] < moments["after"]


async def test_a_quiet_period_from_before_the_clock_was_set_back_ends_and_later_ones_count(
    database: Database,
) -> None:
    await _by_key(database, quiet_period=3_600.0)
    scheduler = Scheduler(database)
    await emit_keys(database, ["before"])
    assert await scheduler.run_once() == 0
    await _set_back(database)
    assert (await _why_not(database)).runs_due == 1
    scheduler = Scheduler(database)
    assert await scheduler.run_once() == 1
    await emit_keys(database, ["before"])
    assert await scheduler.run_once() == 0
    (stored,) = await stored_keys(database, "by_key")
    assert stored.due_at > stored.newest_at + timedelta(minutes=59)
    assert stored.noted_at is not None


async def test_an_event_from_before_hides_none_that_counts_for_a_quiet_period(
    database: Database,
) -> None:
    await _by_key(database, quiet_period=3_600.0)
    await emit_keys(database, ["k"])
    await _set_back(database)
    await emit_keys(database, ["k"])
    assert await Scheduler(database).run_once() == 0
    assert (await _why_not(database)).runs_due == 0


async def test_a_deadline_after_the_first_event_counts_from_when_the_clock_was_set_back(
    database: Database,
) -> None:
    await add_asset(database, 1, "a")
    both = RollupMapper(
        upstream_mapper=FixedKeyMapper("world"),
        window=SegmentWindow(["eu", "us", "asia"]),
        wait_policy=WaitUntil(timedelta(minutes=30)),
    )
    schedule = partitioned(asset("a"), default_partition_mapper=both)
    await add_dag(database, "by_key", schedule, assets=[1])
    scheduler = Scheduler(database)
    await emit_keys(database, ["eu"])
    assert await scheduler.run_once() == 0
    (before,) = await stored_keys(database, "by_key")
    await _set_back(database)
    told = (await _why_not(database)).partitions[0].due_at
    scheduler = Scheduler(database)
    assert await scheduler.run_once() == 0
    (after,) = await stored_keys(database, "by_key")
    assert told is not None
    assert timedelta() <= after.due_at - before.due_at < timedelta(minutes=2)
    assert abs(told - after.due_at) < timedelta(minutes=2)
    await emit_keys(database, ["us"])
    assert await scheduler.run_once() == 0
    (again,) = await stored_keys(database, "by_key")
    assert again.due_at == after.due_at


async def test_a_deadline_by_the_calendar_stays(sqlite_url: str) -> None:
    clock = [datetime.fromisoformat("2026-03-10T12:00+00:00")]
    async with open_database(sqlite_url, now=lambda: clock[0]) as database:
        await daily(database, policy=WaitUntil(timedelta(hours=6)))
        scheduler = Scheduler(database)
        await emit_keys(database, HOURS[:1])
        assert await scheduler.run_once() == 0
        clock[0] -= 2 * HOUR
        assert await Scheduler(database).run_once() == 0
        (stored,) = await stored_keys(database, "daily")
        assert stored.due_at.isoformat() == "2026-03-11T06:00:00+00:00"
        assert stored.noted_at == clock[0]
