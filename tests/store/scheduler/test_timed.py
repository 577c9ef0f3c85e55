"""Runs that a timetable asks for, on a real database and by its clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import anyio
import pytest
import time_machine
from sqlalchemy import update

from tests.store.scheduling import end, now_of, one_asset, renewed, set_columns, timed
from tests.store.seeding import add_asset, add_dag, emit, queue_of, runs_of, until
from triggerer.domain.assets import Asset
from triggerer.domain.schedules import OnBoth, OnEither, OnTime, schedule_to_json
from triggerer.domain.timetables import (
    ContinuousTimetable,
    CronDataIntervalTimetable,
    CronTriggerTimetable,
    DeltaDataIntervalTimetable,
    DeltaTriggerTimetable,
    OnceTimetable,
)
from triggerer.errors import RowRefused
from triggerer.scheduler import Scheduler
from triggerer.store.dags.candidates import find_due_times
from triggerer.store.dags.pausing import set_paused
from triggerer.store.database.opening import open_database
from triggerer.store.database.transactions import Database
from triggerer.store.runs.creation.create_run import create_manual_run
from triggerer.store.schema.models import Dag, DagRun
from triggerer.store.schema.models.dags import NEVER

HOUR = timedelta(hours=1)
FLIGHTS = Asset("x-test://flights", name="flights")


async def shown(database: Database, dag_id: str) -> Dag:
    async with database.reading() as session:
        dag = await session.get(Dag, dag_id)
        assert dag is not None
        return dag


def dates(runs: list[DagRun]) -> list[datetime | None]:
    return [run.logical_date for run in runs]


async def test_a_scheduled_run_has_its_interval_and_its_id_and_the_next_is_noted(
    database: Database,
) -> None:
    now = await now_of(database)
    start = now - 3 * HOUR - timedelta(minutes=1)
    schedule = OnTime(DeltaDataIntervalTimetable(HOUR))
    await timed(database, "report", schedule, start_date=start, catchup=True, params={"a": 1})
    assert (await shown(database, "report")).next_run_after == start + HOUR
    scheduler = Scheduler(database)
    assert await scheduler.run_once() == 3
    assert await scheduler.run_once() == 0
    runs = await runs_of(database, "report")
    assert dates(runs) == [start + n * HOUR for n in range(3)]
    first = runs[0]
    assert (first.run_type, first.state, first.params) == ("scheduled", "queued", {"a": 1})
    assert first.run_id == f"scheduled__{(start + HOUR).isoformat(timespec='microseconds')}"
    assert (first.data_interval_start, first.data_interval_end) == (start, start + HOUR)
    assert first.run_after == start + HOUR
    assert first.queued_at >= now
    dag = await shown(database, "report")
    assert (dag.next_run_after, dag.next_interval_start) == (start + 4 * HOUR, start + 3 * HOUR)
    assert dag.last_run_at is not None
    assert dag.last_run_at >= now


@pytest.mark.parametrize(
    "start", [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)]
)
async def test_a_dag_that_starts_at_an_end_of_the_calendar_stops_no_other(
    database: Database, start: datetime
) -> None:
    # PostgreSQL stores these two instants as its infinities. In an earlier version, they ended the service's scheduler.
    daily = OnTime(CronTriggerTimetable("@daily", timezone=UTC))
    await timed(database, "endless", daily, start_date=start)
    await timed(database, "report", OnTime(OnceTimetable()))
    await Scheduler(database).run_once()
    assert len(await runs_of(database, "report")) == 1


async def test_a_scheduler_sleeps_until_a_run_is_due_and_makes_it_then(database: Database) -> None:
    start = await now_of(database)
    gap = timedelta(seconds=0.5)
    schedule = OnTime(DeltaDataIntervalTimetable(gap))
    scheduler = Scheduler(database, sweep_interval=HOUR)
    async with anyio.create_task_group() as tasks:
        await tasks.start(scheduler.run)
        # With catch-up, the expected intervals do not depend on the machine's speed.
        late = {"catchup": True, "max_active_runs": 100}
        await timed(database, "report", schedule, start_date=start, **late)
        await set_columns(database, "report", description="announced")
        await until(lambda: scheduler.runs_created >= 3)
        tasks.cancel_scope.cancel()
    runs = await runs_of(database, "report")
    assert all(run.queued_at >= run.run_after for run in runs)
    # Even under load, no run is created twice or for a wrong interval.
    assert len(set(dates(runs))) == len(runs)
    assert {(run.run_after - start) % gap for run in runs} == {timedelta(0)}


async def test_many_schedulers_make_each_run_once(postgres_url: str, postgres: Database) -> None:
    now = await now_of(postgres)
    start = now - 20 * HOUR - timedelta(minutes=1)
    for number in range(8):
        schedule = OnTime(DeltaDataIntervalTimetable(HOUR))
        name = f"dag{number}"
        await timed(postgres, name, schedule, start_date=start, catchup=True, max_active_runs=99)
    schedulers = []
    async with (
        open_database(postgres_url) as second,
        open_database(postgres_url) as third,
        anyio.create_task_group() as tasks,
    ):
        for database in (postgres, second, third):
            scheduler = Scheduler(database, max_dagruns_to_create_per_loop=3)
            schedulers.append(scheduler)
            tasks.start_soon(scheduler.run_once)
    assert sum(scheduler.runs_created for scheduler in schedulers) == 160
    for number in range(8):
        runs = await runs_of(postgres, f"dag{number}")
        assert dates(runs) == [start + n * HOUR for n in range(20)]


async def test_a_run_id_that_is_taken_means_that_the_run_exists(database: Database) -> None:
    start = await now_of(database) - 3 * HOUR - timedelta(minutes=1)
    schedule = OnTime(DeltaDataIntervalTimetable(HOUR))
    await timed(database, "report", schedule, start_date=start, catchup=True)
    async with database.transaction() as session:
        for number in (1, 3):
            after = start + number * HOUR
            session.add(
                DagRun(
                    dag_id="report",
                    run_id=f"scheduled__{after.isoformat(timespec='microseconds')}",
                    run_type="manual",
                    state="success",
                    run_after=after,
                    queued_at=after,
                )
            )
    scheduler = Scheduler(database)
    assert await scheduler.run_once() == 1
    assert await scheduler.run_once() == 0
    made = [run for run in await runs_of(database, "report") if run.run_type == "scheduled"]
    assert dates(made) == [start + HOUR]
    assert (await shown(database, "report")).next_interval_start == start + 3 * HOUR


async def test_nobody_names_a_run_as_the_scheduler_would(database: Database) -> None:
    await one_asset(database)
    with pytest.raises(RowRefused, match="scheduled__"):
        async with database.transaction() as session:
            await create_manual_run(session, "report", run_id="scheduled__2026-01-01")


async def test_a_run_by_hand_has_the_interval_that_its_timetable_says(database: Database) -> None:
    await timed(
        database, "report", OnTime(DeltaTriggerTimetable(HOUR, interval=HOUR)), is_paused=True
    )
    async with database.transaction() as session:
        await create_manual_run(session, "report")
    (run,) = await runs_of(database, "report")
    assert run.logical_date == run.data_interval_end == run.run_after
    assert run.data_interval_start == run.run_after - HOUR
    # The timetable did not ask for the manual run, so the scheduled run is still due.
    await set_columns(database, "report", is_paused=False)
    assert await Scheduler(database).run_once() == 1


async def test_hourly_becomes_daily_and_is_due_again(database: Database) -> None:
    now = await now_of(database)
    hourly = OnTime(CronDataIntervalTimetable("0 * * * *", timezone="UTC"))
    daily = OnTime(CronDataIntervalTimetable("0 0 * * *", timezone="UTC"))
    start = now - timedelta(days=2)
    await timed(database, "report", hourly, start_date=start, catchup=True, max_active_runs=1_000)
    scheduler = Scheduler(database)
    assert await scheduler.run_once() >= 47
    await set_columns(database, "report", schedule=schedule_to_json(daily))
    dag = await renewed(database, "report")
    assert now < dag.next_run_after <= now + timedelta(days=2)
    assert await scheduler.run_once() == 0
    assert (await shown(database, "report")).next_run_after == dag.next_run_after


async def test_paused_over_fires_and_resumed_there_is_one_run(database: Database) -> None:
    start = await now_of(database) - 5 * HOUR - timedelta(minutes=1)
    schedule = OnTime(DeltaDataIntervalTimetable(HOUR))
    await timed(database, "report", schedule, start_date=start, is_paused=True)
    scheduler = Scheduler(database)
    assert await scheduler.run_once() == 0
    async with database.transaction() as session:
        assert await set_paused(session, "report", paused=False)
    assert await scheduler.run_once() == 1
    assert await scheduler.run_once() == 0
    (run,) = await runs_of(database, "report")
    assert run.run_after > start + 4 * HOUR


async def test_either_makes_both_and_an_event_is_in_one_run_alone(database: Database) -> None:
    await add_asset(database, 1, "flights")
    schedule = OnEither(OnceTimetable(), FLIGHTS)
    start = await now_of(database) - HOUR
    await timed(database, "report", schedule, assets=(1,), start_date=start)
    await emit(database, 1, 2)
    assert await Scheduler(database).run_once() == 2
    timed_run, triggered = await runs_of(database, "report")
    assert (timed_run.run_type, triggered.run_type) == ("scheduled", "asset_triggered")
    assert {pk for _, pk in await queue_of(database, "report")} == {triggered.id}


async def test_a_timetable_with_much_to_catch_up_with_leaves_every_other_run_to_events(
    database: Database,
) -> None:
    await add_asset(database, 1, "flights")
    schedule = OnEither(DeltaDataIntervalTimetable(HOUR), FLIGHTS)
    start = await now_of(database) - 9 * HOUR
    bounds = {"start_date": start, "catchup": True, "max_active_runs": 1}
    await timed(database, "report", schedule, assets=(1,), **bounds)
    scheduler = Scheduler(database)
    for _ in range(4):
        await emit(database, 1)
        assert await scheduler.run_once() == 1
        await end(database, *await runs_of(database, "report"))
    runs = await runs_of(database, "report")
    assert [run.run_type for run in runs] == ["scheduled", "asset_triggered"] * 2
    assert dates(runs[::2]) == [start, start + HOUR]


async def test_both_is_a_run_with_its_events_and_the_interval_of_the_fire(
    database: Database,
) -> None:
    await add_asset(database, 1, "flights")
    start = await now_of(database) - 3 * HOUR - timedelta(minutes=1)
    schedule = OnBoth(DeltaDataIntervalTimetable(HOUR), FLIGHTS)
    await timed(
        database,
        "report",
        schedule,
        assets=(1,),
        start_date=start,
        catchup=True,
        events_per_run=1,
    )
    scheduler = Scheduler(database)
    assert await scheduler.run_once() == 0
    before = await now_of(database)
    await emit(database, 1, 5)
    assert await scheduler.run_once() == 3
    runs = await runs_of(database, "report")
    assert [run.run_type for run in runs] == ["asset_triggered"] * 3
    assert dates(runs) == [start + n * HOUR for n in range(3)]
    assert all(run.run_after >= before for run in runs)
    assert [pk for _, pk in await queue_of(database, "report")] == [
        *(run.id for run in runs),
        None,
        None,
    ]


async def test_runs_keep_their_gap_and_events_in_between_go_into_the_next(
    database: Database,
) -> None:
    await one_asset(database, min_run_gap=0.5)
    scheduler = Scheduler(database, sweep_interval=HOUR)
    async with anyio.create_task_group() as tasks:
        await tasks.start(scheduler.run)
        for _ in range(3):
            await emit(database, 1)
            await until(lambda: scheduler.runs_created >= 1)
        await until(lambda: scheduler.runs_created == 2)
        tasks.cancel_scope.cancel()
    first, second = await runs_of(database, "report")
    assert second.queued_at - first.queued_at >= timedelta(seconds=0.5)
    assert [pk for _, pk in await queue_of(database, "report")] == [first.id, second.id, second.id]


async def test_a_run_comes_when_no_event_has_come_for_a_while(database: Database) -> None:
    await one_asset(database, quiet_period=0.4)
    scheduler = Scheduler(database, sweep_interval=HOUR)
    async with anyio.create_task_group() as tasks:
        await tasks.start(scheduler.run)
        for _ in range(4):
            await emit(database, 1)
            await anyio.sleep(0.05)
        await until(lambda: scheduler.runs_created == 1)
        tasks.cancel_scope.cancel()
    (run,) = await runs_of(database, "report")
    assert {pk for _, pk in await queue_of(database, "report")} == {run.id}


async def test_a_run_waits_for_the_success_of_the_one_before(database: Database) -> None:
    await one_asset(database, depends_on_past=True)
    scheduler = Scheduler(database)
    await emit(database, 1)
    assert await scheduler.run_once() == 1
    await emit(database, 1)
    (first,) = await runs_of(database, "report")
    for state in ("queued", "running", "failed"):
        async with database.transaction() as session:
            await session.execute(update(DagRun).values(state=state))
        assert await scheduler.run_once() == 0
    await end(database, first)
    assert await scheduler.run_once() == 1


async def test_the_end_of_a_run_wakes_a_dag_that_runs_without_a_break(database: Database) -> None:
    await timed(database, "report", OnTime(ContinuousTimetable()))
    scheduler = Scheduler(database, sweep_interval=HOUR)
    async with anyio.create_task_group() as tasks:
        await tasks.start(scheduler.run)
        for number in range(1, 4):
            await until(lambda n=number: scheduler.runs_created == n)
            runs = await runs_of(database, "report")
            assert len(runs) == number
            await end(database, *runs)
        tasks.cancel_scope.cancel()


async def test_a_timetable_that_cannot_be_read_stops_nobody_else(database: Database) -> None:
    theirs = {"timetable": {"type": "theirs", "arguments": {}}}
    await add_dag(database, "broken", theirs)
    await renewed(database, "broken")
    start = await now_of(database) - HOUR
    await timed(database, "report", OnTime(OnceTimetable()), start_date=start)
    assert await Scheduler(database).run_once() == 1
    assert len(await runs_of(database, "report")) == 1


async def test_due_dags_come_in_order_and_a_dag_without_a_timetable_never(
    database: Database,
) -> None:
    await one_asset(database)
    now = await now_of(database)
    for number in (2, 0, 1):
        await timed(
            database, f"dag{number}", OnTime(OnceTimetable()), start_date=now + number * HOUR
        )
    await add_dag(database, "paused", None, is_paused=True, next_run_after=now)
    async with database.reading() as session:
        found = await find_due_times(session)
    assert list(found.due.items()) == [(f"dag{n}", now + n * HOUR) for n in range(3)]
    assert (await shown(database, "report")).next_run_after == NEVER


@pytest.mark.rule("busy DAGs starve the others")
async def test_dags_that_are_always_due_starve_no_dag_that_waits_for_an_asset(
    database: Database,
) -> None:
    start = await now_of(database) - 5_000 * HOUR
    for number in range(40):
        schedule = OnTime(DeltaDataIntervalTimetable(HOUR))
        name = f"always{number}"
        await timed(
            database, name, schedule, start_date=start, catchup=True, max_active_runs=10_000
        )
    await one_asset(database)
    scheduler = Scheduler(database, max_dagruns_to_create_per_loop=16)
    async with anyio.create_task_group() as tasks:
        await tasks.start(scheduler.run)
        await until(lambda: scheduler.runs_created > 50)
        for number in range(1, 6):
            made = scheduler.runs_created
            await emit(database, 1)

            async def is_made(n: int = number) -> bool:
                return len(await runs_of(database, "report")) == n

            with anyio.fail_after(60):
                while not await is_made():  # noqa: ASYNC110
                    await anyio.sleep(0.005)
            # Even on a slow machine, only a few transactions of 16 runs each came first.
            assert scheduler.runs_created - made < 40 * 16
        tasks.cancel_scope.cancel()
    for number in range(40):
        assert len(await runs_of(database, f"always{number}")) >= 1


async def test_a_timetables_answer_by_a_wrong_clock_is_dropped_once_the_clock_is_right(
    sqlite_url: str,
) -> None:
    now = datetime(2026, 3, 2, 10, tzinfo=UTC)
    schedule = OnTime(CronTriggerTimetable("30 * * * *", timezone="UTC"))
    async with open_database(sqlite_url, now=lambda: now) as database:
        with time_machine.travel(now, tick=False) as host:
            scheduler = Scheduler(database)
            await timed(database, "report", schedule, start_date=now)
            host.move_to(now + 3 * HOUR)
            await scheduler.run_once()
            await renewed(database, "report")
            host.move_to(now)
            assert await next_run_of(database, "report") == now + timedelta(hours=2.5)
            await scheduler.run_once()
            assert await next_run_of(database, "report") == now + timedelta(hours=0.5)


async def next_run_of(database: Database, dag_id: str) -> datetime:
    async with database.reading() as session:
        return (await session.get_one(Dag, dag_id)).next_run_after


async def test_an_interval_that_was_run_while_the_clock_was_ahead_is_not_run_again(
    sqlite_url: str,
) -> None:
    """A unique run id cannot prevent a second run here: with `OnBoth`, the id contains the instant of the run's
    creation."""
    right = datetime(2026, 3, 2, 10, 30, tzinfo=UTC)
    clock = [right]
    both = OnBoth(CronDataIntervalTimetable("0 * * * *", timezone="UTC"), FLIGHTS)
    async with open_database(sqlite_url, now=lambda: clock[0]) as database:
        await add_asset(database, 1, "flights")
        await timed(
            database, "report", both, assets=(1,), start_date=right - 6 * HOUR, catchup=True
        )
        scheduler = Scheduler(database)
        for moment in (right, right + 5 * HOUR, right, right + 5 * HOUR + timedelta(minutes=3)):
            clock[0] = moment
            for _ in range(2):
                clock[0] += timedelta(seconds=1)
                await emit(database, 1)
                await scheduler.run_once()
        made = dates(await runs_of(database, "report"))
        assert len(made) == len(set(made)) == 7
        assert sorted(made) == [made[0] + n * HOUR for n in range(7)]


async def test_an_interval_of_a_changed_schedule_that_began_before_the_last_run_is_not_run_again(
    database: Database,
) -> None:
    """The last run belongs to the previous schedule, and was created while the clock was some seconds ahead."""
    await add_asset(database, 1, "flights")
    ticks = CronTriggerTimetable("*/30 * * * *", timezone="UTC", interval=HOUR / 2)
    half_hours = OnBoth(ticks, FLIGHTS)
    now = await now_of(database)
    start = now.replace(minute=0, second=0, microsecond=0) - 2 * HOUR
    await timed(database, "report", half_hours, assets=(1,), start_date=start, catchup=True)
    last = start + timedelta(minutes=10)
    intervals = [(start, start + HOUR / 2, now - HOUR), (last, last, now + timedelta(seconds=30))]
    async with database.transaction() as session:
        for number, (begin, end_at, run_after) in enumerate(intervals):
            session.add(
                DagRun(
                    dag_id="report",
                    run_id=str(number),
                    run_type="asset_triggered",
                    state="success",
                    logical_date=begin,
                    data_interval_start=begin,
                    data_interval_end=end_at,
                    run_after=run_after,
                    queued_at=now,
                )
            )
    await emit(database, 1)
    assert await Scheduler(database).run_once() == 1
    made = dates(await runs_of(database, "report"))
    assert sorted(date for date in made if date) == [start, last, start + HOUR / 2]
