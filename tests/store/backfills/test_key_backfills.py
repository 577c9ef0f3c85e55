"""Backfills of partition keys on each database: which runs they make, how many at once, and what they do not touch."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import insert, text

from tests.actors import TESTER
from tests.store.explaining import working
from tests.store.partitions import asset, daily, emit_keys, partitioned, waiting_shares
from tests.store.scheduling import end
from tests.store.seeding import NOW, add_asset, add_dag, runs_of
from triggerer.domain.backfills import Reprocess
from triggerer.domain.runs import RunState
from triggerer.errors import DagError, MoveRefused, RowRefused, UnknownDag
from triggerer.operations.backfills import cancel_backfill, list_backfills
from triggerer.operations.key_backfills import (
    PlannedKey,
    keys_of_periods,
    plan_keys,
    start_key_backfill,
)
from triggerer.scheduler import Scheduler
from triggerer.scheduler.backfills import BackfillRunner
from triggerer.store.backfills.listing import runs_of_keys
from triggerer.store.database.transactions import Database, database_now
from triggerer.store.listing.views import BackfillView
from triggerer.store.schema.models import DagRun

DAYS = ["2026-03-10", "2026-03-11", "2026-03-12"]


async def _start(database: Database, keys: list[str], **options: Any) -> BackfillView:
    async with database.transaction() as session:
        return await start_key_backfill(session, TESTER, "daily", keys, **options)


async def _keys(database: Database, start: datetime, end_: datetime) -> list[str]:
    async with database.reading() as session:
        return await keys_of_periods(session, "daily", start, end_)


async def _states(database: Database) -> list[tuple[str | None, str, str]]:
    return [
        (run.partition_key, run.run_type, run.state) for run in await runs_of(database, "daily")
    ]


async def test_keys_are_run_in_order_and_a_few_at_a_time(database: Database) -> None:
    await daily(database, is_paused=True)
    found = await _start(database, [*DAYS, DAYS[0]], max_active=2)
    assert (found.state, found.from_date, found.intervals) == ("running", None, {})
    assert found.partition_keys == {"started": 2, "pending": 1}
    assert await _states(database) == [(day, "backfill", "queued") for day in DAYS[:2]]
    runner = BackfillRunner(database)
    await runner.run_once()
    assert len(await runs_of(database, "daily")) == 2
    await end(database, *(await runs_of(database, "daily"))[:1])
    await runner.run_once()
    assert [key for key, _, _ in await _states(database)] == DAYS
    await end(database, *await runs_of(database, "daily"))
    async with database.reading() as session:
        (ended,) = await list_backfills(session)
    assert (ended.state, ended.partition_keys, ended.runs) == (
        "done",
        {"started": 3},
        {"success": 3},
    )


async def test_runs_of_keys_have_the_parameters_of_the_backfill(database: Database) -> None:
    await daily(database, is_paused=True, params={"p": 1, "own": True})
    await _start(database, DAYS[:1])
    await end(database, *await runs_of(database, "daily"))
    await _start(database, DAYS[:2], reprocess=Reprocess.ALL, params={"p": 2})
    assert [run.params for run in await runs_of(database, "daily")] == [
        {"p": 2, "own": True},
        {"p": 2, "own": True},
    ]


async def test_events_that_wait_for_a_backfilled_key_still_get_their_run(
    database: Database,
) -> None:
    await daily(database)
    hours = [f"{DAYS[0]}T{hour:02}" for hour in range(24)]
    first = await emit_keys(database, hours[:23])
    scheduler = Scheduler(database)
    assert await scheduler.run_once() == 0
    await _start(database, DAYS[:1])
    assert await waiting_shares(database, "daily") == [(DAYS[0], event) for event in first]
    assert await scheduler.run_once() == 0
    await emit_keys(database, hours[23:])
    assert await scheduler.run_once() == 1
    assert [kind for _, kind, _ in await _states(database)] == ["backfill", "asset_triggered"]


async def test_a_key_that_has_run_is_skipped_unless_it_is_asked_for(database: Database) -> None:
    await daily(database)
    await _start(database, DAYS[:1])
    await end(database, *await runs_of(database, "daily"))
    (run,) = await runs_of(database, "daily")
    async with database.reading() as session:
        planned = await plan_keys(session, "daily", DAYS[:2])
    assert planned == [
        PlannedKey(DAYS[0], "skip", run.run_id, "success"),  # type: ignore[arg-type]
        PlannedKey(DAYS[1], "run", None, None),  # type: ignore[arg-type]
    ]
    found = await _start(database, DAYS[:1])
    assert (found.state, found.partition_keys) == ("done", {"skipped": 1})
    found = await _start(database, DAYS[:1], reprocess=Reprocess.FAILED)
    assert found.partition_keys == {"skipped": 1}
    found = await _start(database, DAYS[:1], reprocess=Reprocess.ALL)
    assert (found.state, found.partition_keys) == ("running", {"started": 1})
    assert await _states(database) == [(DAYS[0], "backfill", "queued")]


async def test_one_at_a_time_and_a_cancelled_one_begins_nothing_more(database: Database) -> None:
    await daily(database)
    found = await _start(database, DAYS, max_active=1)
    with pytest.raises(MoveRefused, match="has not ended"):
        await _start(database, DAYS)
    async with database.transaction() as session:
        cancelled = await cancel_backfill(session, TESTER, found.id)
    assert cancelled.partition_keys == {"started": 1, "cancelled": 2}
    await BackfillRunner(database).run_once()
    assert await _states(database) == [(DAYS[0], "backfill", "cancelled")]


async def test_a_range_of_time_is_that_of_the_periods_that_start_in_it_and_are_over(
    database: Database,
) -> None:
    await daily(database)
    start = datetime(2026, 3, 10, tzinfo=UTC)
    assert await _keys(database, start, start + timedelta(days=2)) == DAYS
    later = start + timedelta(microseconds=1)
    assert await _keys(database, later, start + timedelta(days=2, hours=3)) == DAYS[1:]
    async with database.reading() as session:
        today = (await database_now(session)).replace(hour=0, minute=0, second=0, microsecond=0)
    days = [(today - timedelta(days=n)).strftime("%Y-%m-%d") for n in (2, 1)]
    assert await _keys(database, today - timedelta(days=2), today + timedelta(days=9)) == days
    with pytest.raises(DagError, match="empty"):
        await _keys(database, later, start)


async def test_keys_that_are_no_periods_have_to_be_named(database: Database) -> None:
    await add_asset(database, 1, "regions")
    await add_dag(database, "daily", partitioned(asset("regions")), assets=[1])
    start = datetime(2026, 3, 10, tzinfo=UTC)
    with pytest.raises(DagError, match="no periods"):
        await _keys(database, start, start)
    assert (await _start(database, ["eu", "us"])).partition_keys == {"started": 2}
    for keys, error in ((["\0"], RowRefused), ([], DagError)):
        with pytest.raises(error):
            await _start(database, keys)
    async with database.transaction() as session:
        with pytest.raises(UnknownDag):
            await start_key_backfill(session, TESTER, "nobody", ["eu"])


async def test_the_runs_of_a_key_are_looked_up_among_many(database: Database) -> None:
    await daily(database, is_paused=True)
    common = {"dag_id": "daily", "run_type": "manual", "state": "success"}
    at = {"run_after": NOW, "queued_at": NOW}
    rows = [{**common, **at, "run_id": f"{n}", "partition_key": f"{n}"} for n in range(5_000)]
    async with database.transaction() as session:
        await session.execute(insert(DagRun), rows)
        if session.get_bind().dialect.name == "postgresql":
            await session.execute(text("ANALYZE"))
    async with database.reading() as session, working(await session.connection()) as work:
        found = await runs_of_keys(session, "daily", ["7", "4000", "none"])
    assert found == {key: (key, RunState.SUCCESS) for key in ("7", "4000")}
    assert work.done < 100


async def test_the_runs_of_a_backfill_of_keys_are_shown_once_a_later_one_has_repeated_them(
    database: Database,
) -> None:
    await daily(database, is_paused=True)
    await _start(database, DAYS)
    await end(database, *await runs_of(database, "daily"))
    await _start(database, DAYS, reprocess=Reprocess.ALL)
    async with database.reading() as session:
        later, first = await list_backfills(session)
    assert (first.state, first.runs) == ("done", {"queued": 3})
    assert (later.state, later.runs) == ("running", {"queued": 3})
