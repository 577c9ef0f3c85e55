"""Runs for partition keys: which are made, with which events, and what they cost."""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest

from tests.actors import TESTER
from tests.store.partitions import (
    DAY,
    HOURS,
    asset,
    daily,
    days_of_months,
    emit_keys,
    keyed_runs,
    partitioned,
    stored_keys,
    stored_parts,
    waiting_shares,
)
from tests.store.scheduling import end
from tests.store.seeding import add_alias, add_asset, add_dag, queue_of, runs_of
from triggerer import AssetAlias
from triggerer.errors import RowRefused
from triggerer.operations.queued_events import delete_queued_events, list_queued_events
from triggerer.operations.triggering import trigger_dag
from triggerer.partitions import (
    FanOutMapper,
    FixedKeyMapper,
    MinimumCount,
    MonthWindow,
    RollupMapper,
    SegmentWindow,
    StartOfMonthMapper,
    WaitUntil,
)
from triggerer.scheduler import Scheduler, dividing
from triggerer.store.dags.listing import list_dags
from triggerer.store.dags.pausing import set_paused
from triggerer.store.database.statement import Statement
from triggerer.store.database.transactions import Database
from triggerer.store.events.emit import NewAssetEvent, record_events
from triggerer.store.events.listing import list_asset_events
from triggerer.store.events.run_events import Page, page_of_run, triggering_assets
from triggerer.store.partitions import keys as partitions
from triggerer.store.runs.listing import list_runs


async def test_a_run_for_a_key_starts_when_both_assets_have_an_event_of_it(
    database: Database,
) -> None:
    await add_asset(database, 1, "flights")
    await add_asset(database, 2, "weather")
    await add_dag(
        database, "join", partitioned([asset("flights"), asset("weather")]), assets=[1, 2]
    )
    scheduler = Scheduler(database)
    first = await emit_keys(database, ["a", "b"])
    assert await scheduler.run_once() == 0
    second = await emit_keys(database, ["b", "c"], asset_id=2)
    assert await scheduler.run_once() == 1
    (run,) = await runs_of(database, "join")
    assert (run.partition_key, run.run_type, run.state) == ("b", "asset_triggered", "queued")
    assert await keyed_runs(database, "join") == [("b", [first[1], second[0]])]
    assert await waiting_shares(database, "join") == [("a", first[0]), ("c", second[1])]


async def test_a_day_runs_when_its_24_hours_are_there(database: Database) -> None:
    await daily(database)
    scheduler = Scheduler(database)
    early = await emit_keys(database, HOURS[:23])
    assert await scheduler.run_once() == 0
    assert len(await stored_parts(database, "daily")) == 23
    again = await emit_keys(database, HOURS[:1])
    assert await scheduler.run_once() == 0
    last = await emit_keys(database, HOURS[23:])
    assert await scheduler.run_once() == 1
    assert await keyed_runs(database, "daily") == [(DAY, [*early, *again, *last])]
    assert await stored_parts(database, "daily") == []
    assert await scheduler.run_once() == 0


async def test_a_minimum_count_of_parts_is_enough(database: Database) -> None:
    await daily(database, policy=MinimumCount(-1))
    await emit_keys(database, HOURS[1:])
    assert await Scheduler(database).run_once() == 1


async def test_a_day_runs_with_the_present_hours_once_its_deadline_is_past(
    database: Database,
) -> None:
    await daily(database, policy=WaitUntil(timedelta(hours=2), minimum=3))
    scheduler = Scheduler(database)
    events = await emit_keys(database, HOURS[:2])
    assert await scheduler.run_once() == 0
    events += await emit_keys(database, HOURS[2:3])
    assert await scheduler.run_once() == 1
    assert await keyed_runs(database, "daily") == [(DAY, events)]


async def test_a_deadline_that_lies_ahead_wakes_a_scheduler_that_has_just_started(
    database: Database,
) -> None:
    await add_asset(database, 1, "regions")
    mapper = RollupMapper(
        upstream_mapper=FixedKeyMapper("all"),
        window=SegmentWindow(["eu", "us"]),
        wait_policy=WaitUntil(timedelta(seconds=1)),
    )
    schedule = partitioned(asset("regions"), default_partition_mapper=mapper)
    await add_dag(database, "all", schedule, assets=[1])
    (event,) = await emit_keys(database, ["eu"])
    assert await Scheduler(database).run_once() == 0
    # No event is queued any longer, so only the key's deadline can cause a look.
    async with _scheduling(database):
        await _until_runs(database, "all", 1)
    assert await keyed_runs(database, "all") == [("all", [event])]


@asynccontextmanager
async def _scheduling(*databases: Database) -> AsyncIterator[None]:
    """Run schedulers that sweep once an hour, so that only wake-ups and due times cause a look during a test."""
    async with anyio.create_task_group() as tasks:
        for database in databases:
            await tasks.start(Scheduler(database, sweep_interval=timedelta(hours=1)).run)
        yield
        tasks.cancel_scope.cancel()


async def _until_runs(database: Database, dag_id: str, count: int) -> None:
    with anyio.fail_after(60):
        while len(await runs_of(database, dag_id)) < count:  # noqa: ASYNC110
            await anyio.sleep(0.02)


async def test_a_months_event_makes_a_run_for_each_of_its_days(database: Database) -> None:
    await add_asset(database, 1, "months")
    mapper = FanOutMapper(
        upstream_mapper=StartOfMonthMapper(input_format="%Y-%m"), window=MonthWindow()
    )
    schedule = partitioned(asset("months"), default_partition_mapper=mapper)
    await add_dag(database, "days", schedule, assets=[1], max_active_runs=10)
    (event,) = await emit_keys(database, ["2026-02"])
    assert await Scheduler(database).run_once() == 10
    days = [f"2026-02-{day:02}" for day in range(1, 29)]
    assert await keyed_runs(database, "days") == [(day, [event]) for day in days[:10]]
    assert await waiting_shares(database, "days") == [(day, event) for day in days[10:]]
    await end(database, *(await runs_of(database, "days"))[:5])
    assert await Scheduler(database).run_once() == 5
    assert [key for key, _ in await keyed_runs(database, "days")] == days[:15]


async def test_a_scheduler_with_a_small_limit_makes_the_runs_of_all_keys(
    database: Database,
) -> None:
    await _by_key(database, max_active_runs=100)
    await emit_keys(database, [f"k{number:02}" for number in range(40)])
    assert await Scheduler(database, max_dagruns_to_create_per_loop=3).run_once() == 40
    keys = [key for key, _ in await keyed_runs(database, "by_key")]
    assert keys == sorted(keys)
    assert len(set(keys)) == 40


async def _by_key(database: Database, **columns: Any) -> None:
    await add_asset(database, 1, "keys")
    await add_dag(database, "by_key", partitioned(asset("keys")), assets=[1], **columns)


@pytest.mark.rule(
    "two events for one partition within a millisecond make two runs, which wait for ever"
)
async def test_events_for_one_key_at_the_same_instant_make_one_run(database: Database) -> None:
    await daily(database)
    at = datetime(2026, 3, 11, tzinfo=UTC)
    events: list[int] = []

    async def emit_some(hours: Sequence[str]) -> None:
        for hour in hours:
            events.extend(await emit_keys(database, [hour, hour], at=at))

    async with _scheduling(database, database, database), anyio.create_task_group() as tasks:
        for start in range(4):
            tasks.start_soon(emit_some, HOURS[start::4])
    await Scheduler(database).run_once()
    # Late events may start further runs of the day.
    runs = await keyed_runs(database, "daily")
    assert {key for key, _ in runs} == {DAY}
    assert sorted(event for _, taken in runs for event in taken) == sorted(events)
    assert len(runs[0][1]) >= 24
    assert len(await stored_keys(database, "daily")) == 1
    assert await waiting_shares(database, "daily") == []


@pytest.mark.rule(
    "an hour runs again after the run of its day: the next run of the day hangs, or lacks data"
)
async def test_an_hour_that_comes_again_makes_a_run_of_its_own_for_its_day(
    database: Database,
) -> None:
    await daily(database)
    scheduler = Scheduler(database)
    first = await emit_keys(database, HOURS)
    assert await scheduler.run_once() == 1
    again = await emit_keys(database, [HOURS[5]])
    assert await scheduler.run_once() == 1
    together = await emit_keys(database, HOURS[6:9])
    assert await scheduler.run_once() == 1
    assert await keyed_runs(database, "daily") == [(DAY, first), (DAY, again), (DAY, together)]
    (stored,) = await stored_keys(database, "daily")
    assert stored.runs == 3


async def test_an_event_without_a_key_or_with_a_wrong_one_starts_no_run_and_waits_for_nothing(
    database: Database,
) -> None:
    await daily(database)
    await emit_keys(database, [None, "yesterday", "9999-12-31T23"])
    assert await Scheduler(database).run_once() == 0
    assert await queue_of(database, "daily") == [(3, 0)]
    async with database.reading() as session:
        assert len(await list_asset_events(session, state="unused")) == 2


async def test_during_a_pause_nothing_runs_and_nothing_is_lost(database: Database) -> None:
    await daily(database, is_paused=True)
    events = await emit_keys(database, HOURS)
    scheduler = Scheduler(database)
    assert await scheduler.run_once() == 0
    async with database.transaction() as session:
        await set_paused(session, "daily", paused=False)
    assert await scheduler.run_once() == 1
    assert await keyed_runs(database, "daily") == [(DAY, events)]


async def test_keys_that_are_due_when_a_pause_begins_run_when_it_ends(database: Database) -> None:
    await _by_key(database, max_active_runs=1)
    await emit_keys(database, ["a", "b"])
    scheduler = Scheduler(database)
    assert await scheduler.run_once() == 1
    async with database.transaction() as session:
        await set_paused(session, "by_key", paused=True)
    await end(database, *await runs_of(database, "by_key"))
    assert await scheduler.run_once() == 0
    async with database.transaction() as session:
        await set_paused(session, "by_key", paused=False)
    assert await Scheduler(database).run_once() == 1
    assert [key for key, _ in await keyed_runs(database, "by_key")] == ["a", "b"]


async def test_a_gap_and_the_past_hold_the_next_key_back(database: Database) -> None:
    await _by_key(database, min_run_gap=0.5, depends_on_past=True)
    await emit_keys(database, ["a", "b"])
    async with _scheduling(database):
        await _until_runs(database, "by_key", 1)
        first, *others = await runs_of(database, "by_key")
        assert not others
        await end(database, first)
        await _until_runs(database, "by_key", 2)
    first, second = await runs_of(database, "by_key")
    assert second.run_after - first.run_after >= timedelta(seconds=0.5)


async def test_a_quiet_period_counts_for_each_key(database: Database) -> None:
    await _by_key(database, quiet_period=3600.0)
    long_ago = datetime(2026, 1, 1, tzinfo=UTC)
    await emit_keys(database, ["a"], at=long_ago)
    await emit_keys(database, ["b"])
    assert await Scheduler(database).run_once() == 1
    await emit_keys(database, ["b"], at=long_ago)
    assert await Scheduler(database).run_once() == 0
    assert [key for key, _ in await keyed_runs(database, "by_key")] == ["a"]


async def test_a_key_keeps_its_place_however_often_something_comes_for_it(
    database: Database,
) -> None:
    await _by_key(database, max_active_runs=1)
    await emit_keys(database, ["x"])
    scheduler = Scheduler(database)
    assert await scheduler.run_once() == 1
    for key in ("b", "a", "b"):
        await emit_keys(database, [key])
        assert await scheduler.run_once() == 0
    await end(database, *await runs_of(database, "by_key"))
    assert await scheduler.run_once() == 1
    assert [key for key, _ in await keyed_runs(database, "by_key")] == ["x", "b"]


async def test_deleted_events_no_longer_count_and_the_rest_still_waits(database: Database) -> None:
    await add_asset(database, 1, "a")
    await add_asset(database, 2, "b")
    either = partitioned(asset("a") & asset("b"))
    await add_dag(database, "join", either, assets=[1, 2])
    scheduler = Scheduler(database)
    await emit_keys(database, ["k", "l"])
    assert await scheduler.run_once() == 0
    (left,) = await emit_keys(database, ["m"], asset_id=2)
    assert await scheduler.run_once() == 0
    async with database.transaction() as session:
        assert await delete_queued_events(session, TESTER, dag="join", asset="a") == 2
    last = await emit_keys(database, ["k"], asset_id=2)
    assert await scheduler.run_once() == 0
    fresh = await emit_keys(database, ["m"])
    assert await scheduler.run_once() == 1
    assert await keyed_runs(database, "join") == [("m", [left, *fresh])]
    assert await waiting_shares(database, "join") == [("k", *last)]


async def test_waiting_events_are_listed_with_the_keys_of_their_runs(database: Database) -> None:
    await daily(database)
    (event,) = await emit_keys(database, [HOURS[3]])
    async with database.reading() as session:
        (listed,) = await list_queued_events(session, dag="daily")
    assert (listed.asset_event_id, listed.partition_key) == (event, HOURS[3])
    await Scheduler(database).run_once()
    async with database.reading() as session:
        (listed,) = await list_queued_events(session, dag="daily")
        (dag,) = await list_dags(session)
        assert [one.id for one in await list_asset_events(session, state="queued")] == [event]
        assert await list_asset_events(session, state="consumed") == []
    assert (listed.asset_event_id, listed.partition_key) == (event, DAY)
    assert dag.queued_events == 1


async def test_the_shown_events_of_a_run_are_the_events_that_its_tasks_read(
    database: Database,
) -> None:
    await daily(database)
    events = await emit_keys(database, HOURS)
    await Scheduler(database).run_once()
    async with database.reading() as session:
        (run,) = await list_runs(session, dag="daily", with_events=True)
        assert run.asset_event_ids == events
        assert [one.run_id for one in await list_runs(session, asset="hours")] == [run.run_id]
        (row,) = await runs_of(database, "daily")
        (triggering,) = await triggering_assets(session, row.id)
        page = Page(triggering.last_id, newest_first=False, beyond=None, skip=20, limit=10)
        rows = await page_of_run(session, page, run_pk=row.id, uri="x-test://hours")
    assert (triggering.name, triggering.total) == ("hours", 24)
    assert [one["partition_key"] for one in rows] == HOURS[20:]


async def test_an_alias_counts_for_the_keys_of_its_assets(database: Database) -> None:
    await add_asset(database, 1, "one")
    await add_asset(database, 2, "other")
    await add_alias(database, 1, "both")
    schedule = partitioned([asset("one"), AssetAlias("both")])
    await add_dag(database, "join", schedule, assets=[1], aliases=[1])
    events = await emit_keys(database, ["k"])
    assert await Scheduler(database).run_once() == 0
    new = NewAssetEvent(2, partition_key="k", alias_ids=(1,))
    async with database.transaction() as session:
        events += await record_events(session, [new])
    assert await Scheduler(database).run_once() == 1
    assert await keyed_runs(database, "join") == [("k", events)]


async def test_a_run_by_hand_has_its_key_and_takes_nothing(database: Database) -> None:
    await daily(database)
    await emit_keys(database, HOURS[:2])
    await Scheduler(database).run_once()
    async with database.transaction() as session:
        run_id = await trigger_dag(session, TESTER, "daily", partition_key=DAY)
        with pytest.raises(RowRefused, match="a partition key has"):
            await trigger_dag(session, TESTER, "daily", partition_key="")
    (run,) = await runs_of(database, "daily")
    assert (run.run_id, run.run_type, run.partition_key) == (run_id, "manual", DAY)
    assert len(await waiting_shares(database, "daily")) == 2


async def test_a_mapper_that_cannot_be_read_holds_up_no_other_dag(database: Database) -> None:
    await daily(database)
    broken = partitioned(asset("hours"))
    broken["partitioned"]["default_mapper"] = {"type": "Newer", "arguments": {}}
    await add_dag(database, "broken", broken, assets=[1])
    await emit_keys(database, HOURS)
    assert await Scheduler(database).run_once() == 1
    assert len(await queue_of(database, "broken")) == 24


async def test_more_than_is_divided_at_a_time_makes_the_same_runs(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dividing, "MOST_EVENTS", 7)
    await daily(database)
    days = [hour.replace(DAY, day) for hour in HOURS for day in ("2026-03-11", DAY)]
    await emit_keys(database, days)
    await emit_keys(database, HOURS[:3])
    assert await Scheduler(database).run_once() == 2
    counts = [(key, len(events)) for key, events in await keyed_runs(database, "daily")]
    assert counts == [(DAY, 27), ("2026-03-11", 24)]


async def test_on_sqlite_no_statement_reads_all_that_waits(sqlite: Database) -> None:
    statements = [one for one in vars(partitions).values() if isinstance(one, Statement)]
    assert len(statements) >= 12
    texts = [*(one.sqlite for one in statements), *partitions.SQLITE_TAKE]
    async with sqlite.reading() as session:
        connection = await session.connection()
        for text in texts:
            values = dict.fromkeys(re.findall(r":(\w+)", text), "[]")
            rows = await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", values)
            plan = [row[-1] for row in rows]
            scans = [line for line in plan if line.startswith("SCAN")]
            harmless = ("SCAN json_each", "SCAN w", "SCAN n", "SCAN r", "SCAN CONSTANT")
            assert all(line.startswith(harmless) for line in scans), (text, plan)


async def test_the_store_has_one_row_for_each_key_and_one_for_each_event_of_a_key(
    database: Database,
) -> None:
    await days_of_months(database, "report", max_active_runs=1_000)
    scheduler = Scheduler(database)
    divided = []
    for _ in range(3):
        divided.append((await emit_keys(database, ["2026-02", None]))[0])
        assert await scheduler.run_once() == 28
    assert len(await stored_keys(database, "report")) == 28
    assert [len(events) for _, events in await keyed_runs(database, "report")] == [1] * 28 * 3
    assert await stored_parts(database, "report") == []
    assert await waiting_shares(database, "report") == []
    # The events with a key were divided: their queue entries stay, with `run_pk` 0. Entries of events without a key
    # were deleted.
    assert await queue_of(database, "report") == [(event, 0) for event in divided]
