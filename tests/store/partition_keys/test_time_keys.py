"""Partition keys that timetables give to timed runs, manual runs and the runs of backfills."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import update

from tests.actors import TESTER
from tests.store.scheduler.test_timed import FLIGHTS, HOUR, now_of, timed
from tests.store.scheduling import set_columns
from tests.store.seeding import add_asset, emit, runs_of
from triggerer.domain.backfills import Reprocess
from triggerer.domain.runs import RunState
from triggerer.domain.schedules import OnBoth, OnEither, OnTime, schedule_to_json
from triggerer.errors import DagError, InvalidPartitionKey
from triggerer.operations.backfills import list_backfills, plan_backfill, start_backfill
from triggerer.operations.key_backfills import plan_keys, start_key_backfill
from triggerer.operations.triggering import trigger_dag
from triggerer.scheduler import Scheduler
from triggerer.scheduler.backfills import BackfillRunner
from triggerer.scheduler.explaining import next_runs, why_not
from triggerer.store.dags.snapshots import read_dags
from triggerer.store.database.script import perform
from triggerer.store.database.transactions import Database
from triggerer.store.schema.models import DagRun
from triggerer.timetables import CronDataIntervalTimetable, CronPartitionTimetable

FORMAT = "%Y-%m-%dT%H"
HOURLY = CronPartitionTimetable("@hourly", timezone="UTC", run_offset=-1, key_format=FORMAT)
DAY = datetime(2026, 1, 10, tzinfo=UTC)


def key(moment: datetime) -> str:
    return moment.strftime(FORMAT)


def hour_of(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


def half_an_hour_from(now: datetime) -> tuple[CronPartitionTimetable, datetime]:
    """Return an hourly timetable whose last instant was half an hour ago, and this instant. So no run becomes due
    during a test."""
    last = now.replace(second=0, microsecond=0) - HOUR / 2
    cron = f"{last.minute} * * * *"
    return CronPartitionTimetable(cron, timezone="UTC", run_offset=-1, key_format=FORMAT), last


async def keyed(database: Database, dag_id: str = "report") -> list[tuple[str, str | None]]:
    return [(run.run_type, run.partition_key) for run in await runs_of(database, dag_id)]


async def paused(database: Database) -> None:
    await timed(database, "report", OnTime(HOURLY), is_paused=True)


async def test_the_runs_that_time_asks_for_have_the_keys_of_their_data_intervals(
    database: Database,
) -> None:
    start = hour_of(await now_of(database)) - 3 * HOUR
    bounds = {"start_date": start, "end_date": start + 3 * HOUR}
    await timed(database, "report", OnTime(HOURLY), **bounds, catchup=True)
    assert await Scheduler(database).run_once() == 4
    runs = await runs_of(database, "report")
    assert [run.partition_key for run in runs] == [key(start + n * HOUR) for n in range(-1, 3)]
    for run in runs:
        assert run.logical_date is not None
        assert run.partition_key == key(run.logical_date)
        assert (run.data_interval_start, run.data_interval_end) == (
            run.logical_date,
            run.run_after,
        )


async def test_many_dags_that_are_planned_together_have_keys_or_none(database: Database) -> None:
    start = hour_of(await now_of(database)) - HOUR
    plain = CronDataIntervalTimetable("@hourly", timezone="UTC")
    for name, timetable in (("keyed", HOURLY), ("plain", plain)):
        bounds = {"start_date": start, "end_date": start + HOUR}
        await timed(database, name, OnTime(timetable), **bounds, catchup=True)
    assert await Scheduler(database).run_once() == 3
    assert await keyed(database, "plain") == [("scheduled", None)]
    assert await keyed(database, "keyed") == [
        ("scheduled", key(start - HOUR)),
        ("scheduled", key(start)),
    ]


@pytest.mark.parametrize("kind", [OnEither, OnBoth])
async def test_together_with_assets_the_runs_that_time_has_asked_for_have_keys(
    database: Database, kind: type[OnEither | OnBoth]
) -> None:
    await add_asset(database, 1, "flights")
    hourly, start = half_an_hour_from(await now_of(database))
    await timed(database, "report", kind(hourly, FLIGHTS), assets=(1,), start_date=start)
    await emit(database, 1)
    await Scheduler(database).run_once()
    made = await keyed(database)
    if kind is OnBoth:
        assert made == [("asset_triggered", key(start - HOUR))]
    else:
        assert sorted(made) == [("asset_triggered", None), ("scheduled", key(start - HOUR))]


async def test_the_next_run_is_shown_with_its_key(database: Database) -> None:
    await paused(database)
    async with database.reading() as session:
        found = await next_runs(session, "report", 3)
        waiting = await why_not(session, "report")
    assert [one.partition_key for one in found] == [key(one.logical_date) for one in found]
    assert waiting.next_run is not None
    assert waiting.next_run.partition_key == key(waiting.next_run.logical_date)


async def _trigger(database: Database, **options: Any) -> DagRun:
    async with database.transaction() as session:
        run_id = await trigger_dag(session, TESTER, "report", **options)
    (run,) = [run for run in await runs_of(database, "report") if run.run_id == run_id]
    return run


async def test_a_run_by_hand_has_the_key_of_its_data_interval(database: Database) -> None:
    await paused(database)
    run = await _trigger(database)
    assert run.data_interval_start == hour_of(run.run_after) - HOUR
    assert run.partition_key == key(run.data_interval_start)
    dated = await _trigger(database, logical_date=DAY)
    assert (dated.logical_date, dated.data_interval_end) == (DAY, DAY)
    assert dated.partition_key == key(DAY - HOUR)


async def test_a_run_by_hand_for_a_key_is_for_the_data_interval_that_has_it(
    database: Database,
) -> None:
    await paused(database)
    run = await _trigger(database, partition_key=key(DAY))
    assert (run.partition_key, run.logical_date) == (key(DAY), DAY)
    assert (run.data_interval_start, run.data_interval_end) == (DAY, DAY + HOUR)
    dated = await _trigger(database, partition_key=key(DAY), logical_date=DAY + 5 * HOUR)
    assert (dated.partition_key, dated.logical_date) == (key(DAY), DAY + 5 * HOUR)
    assert (dated.data_interval_start, dated.data_interval_end) == (DAY, DAY + HOUR)
    with pytest.raises(InvalidPartitionKey, match="tomorrow"):
        await _trigger(database, partition_key="tomorrow")
    assert len(await runs_of(database, "report")) == 2


async def test_a_backfill_gives_its_runs_the_keys_of_their_data_intervals(
    database: Database,
) -> None:
    await paused(database)
    end = DAY + 4 * HOUR
    async with database.reading() as session:
        planned = await plan_backfill(session, "report", DAY, end)
    assert [one.partition_key for one in planned] == [key(DAY + n * HOUR) for n in range(5)]
    async with database.transaction() as session:
        await start_backfill(session, TESTER, "report", DAY, end, max_active=3)
    # The DAG loses its schedule while the backfill is under way. The planned keys stay.
    await set_columns(database, "report", schedule=None)
    await _end(database)
    await BackfillRunner(database).run_once()
    assert await keyed(database) == [("backfill", key(DAY + n * HOUR)) for n in range(5)]


async def _end(database: Database) -> None:
    async with database.transaction() as session:
        await session.execute(update(DagRun).values(state=RunState.SUCCESS.value))


async def test_a_run_from_before_its_dag_had_keys_has_one_when_it_is_repeated(
    database: Database,
) -> None:
    plain = OnTime(CronDataIntervalTimetable("@hourly", timezone="UTC"))
    await timed(database, "report", plain, is_paused=True)
    for schedule, expected in ((plain, None), (OnTime(HOURLY), key(DAY))):
        await set_columns(database, "report", schedule=schedule_to_json(schedule))
        async with database.transaction() as session:
            await start_backfill(session, TESTER, "report", DAY, DAY, reprocess=Reprocess.ALL)
        assert await keyed(database) == [("backfill", expected)]
        await _end(database)


async def test_a_backfill_of_keys_runs_the_data_intervals_that_have_them(
    database: Database,
) -> None:
    await paused(database)
    keys = [key(DAY + HOUR), key(DAY), key(DAY)]
    async with database.transaction() as session:
        started = await start_key_backfill(session, TESTER, "report", keys)
        assert started.intervals == {"started": 2}
        assert (started.from_date, started.to_date) == (DAY, DAY + HOUR)
    runs = await runs_of(database, "report")
    assert [(run.partition_key, run.logical_date) for run in runs] == [
        (key(DAY + HOUR), DAY + HOUR),
        (key(DAY), DAY),
    ]
    async with database.reading() as session:
        planned = await plan_keys(session, "report", [key(DAY), key(DAY + 2 * HOUR)])
    assert [(one.partition_key, one.step, one.run_id) for one in planned] == [
        (key(DAY), "skip", runs[1].run_id),
        (key(DAY + 2 * HOUR), "run", None),
    ]


async def test_a_backfill_of_a_key_that_is_none_or_is_not_due_is_refused(
    database: Database,
) -> None:
    await paused(database)
    ahead = key(await now_of(database) + 2 * HOUR)
    for wrong, reason in ((ahead, "not due"), ("2026-01-10", "not of the format")):
        with pytest.raises(DagError, match=reason):
            async with database.transaction() as session:
                await start_key_backfill(session, TESTER, "report", [key(DAY), wrong])
    async with database.reading() as session:
        assert await list_backfills(session) == []


async def test_a_partition_that_a_backfill_has_run_is_not_caught_up_with(
    database: Database,
) -> None:
    start = hour_of(await now_of(database)) - 5 * HOUR
    bounds = {"start_date": start, "end_date": start + 5 * HOUR}
    await timed(database, "report", OnTime(HOURLY), **bounds, catchup=True, is_paused=True)
    async with database.transaction() as session:
        await start_backfill(session, TESTER, "report", start + HOUR, start + 2 * HOUR)
    await set_columns(database, "report", is_paused=False)
    await Scheduler(database).run_once()
    keys = [one for _, one in await keyed(database)]
    assert sorted(keys, key=str) == [key(start + n * HOUR) for n in range(-1, 5)]


async def test_runs_of_partitions_ahead_that_were_made_before_the_clock_was_set_back_are_known(
    database: Database,
) -> None:
    """After the clock was set back, two of the three runs are in the future. They must not be created again."""
    await add_asset(database, 1, "flights")
    ahead = CronPartitionTimetable("@hourly", timezone="UTC", run_offset=6)
    await timed(database, "report", OnBoth(ahead, FLIGHTS), assets=(1,))
    now = await now_of(database)
    moments = (now - HOUR, now + 2 * HOUR, now + 3 * HOUR)
    async with database.transaction() as session:
        for at in moments:
            date = hour_of(at) + 6 * HOUR
            values = {
                "logical_date": date,
                "data_interval_start": date,
                "data_interval_end": date + HOUR,
            }
            session.add(
                DagRun(dag_id="report", run_id=f"{at}", run_type="asset_triggered", state="success",
                       run_after=at, queued_at=at, **values)
            )  # fmt: skip
    async with database.reading() as session:
        (row,) = await perform(session, read_dags(["report"], bound=1))
    assert {start for start, _ in row.covered_intervals} == {
        hour_of(at) + 6 * HOUR for at in moments[1:]
    }
