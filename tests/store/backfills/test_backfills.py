"""Backfills on each database: which runs they make, how many at once, and what remains after a cancellation."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import anyio
import pytest
from sqlalchemy import func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession

from tests.actors import TESTER
from tests.store.seeding import add_asset, add_dag, asset_json, runs_of
from triggerer.domain.backfills import MOST_INTERVALS, Reprocess, Step, runs_between, step_for
from triggerer.domain.runs import RunState
from triggerer.domain.timetables import (
    ContinuousTimetable,
    CronDataIntervalTimetable,
    CronTriggerTimetable,
    DagRunInfo,
    DataInterval,
    OnceTimetable,
    TimeRestriction,
    timetable_to_json,
)
from triggerer.errors import DagError, MoveRefused, UnknownDag
from triggerer.operations.backfills import (
    PlannedInterval,
    cancel_backfill,
    list_backfills,
    plan_backfill,
    start_backfill,
)
from triggerer.operations.runs import retry_run
from triggerer.scheduler import Scheduler
from triggerer.scheduler.backfills import BackfillRunner
from triggerer.store.backfills.execution import advance
from triggerer.store.dags.candidates import DueTimes
from triggerer.store.dags.due_moments import renew_due_moments
from triggerer.store.dags.snapshots import ReadDags
from triggerer.store.database.script import Row
from triggerer.store.database.script import Step as StoreStep
from triggerer.store.database.transactions import Database, database_now
from triggerer.store.database.wakeups.signals import Signal, announce
from triggerer.store.listing.views import BackfillView
from triggerer.store.runs.creation.planned_runs import CreateRuns
from triggerer.store.runs.orphans import recover_orphans
from triggerer.store.schema.models import Dag, DagRun, TaskRun

DAILY = {"timetable": timetable_to_json(CronDataIntervalTimetable("@daily", timezone="UTC"))}


def day(number: int) -> datetime:
    return datetime(2026, 1, number, tzinfo=UTC)


async def _start(database: Database, first: int, last: int, **options: Any) -> BackfillView:
    async with database.transaction() as session:
        return await start_backfill(session, TESTER, "d", day(first), day(last), **options)


async def _plan(database: Database, first: int, last: int, **options: Any) -> list[PlannedInterval]:
    async with database.reading() as session:
        return await plan_backfill(session, "d", day(first), day(last), **options)


async def _view(database: Database) -> BackfillView:
    async with database.reading() as session:
        return (await list_backfills(session))[0]


async def _until_blocking(session: AsyncSession) -> None:
    """Wait until another transaction waits for a lock of this session. PostgreSQL announces no waiting."""
    waiting = text(
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
    )
    with anyio.fail_after(30):
        while not await session.scalar(waiting):  # noqa: ASYNC110
            await anyio.sleep(0.01)


async def _end(database: Database, *days: int, state: str = "success") -> None:
    """End the runs of these days, as an executor would."""
    async with database.transaction() as session:
        await session.execute(
            update(DagRun)
            .where(DagRun.logical_date.in_([day(one) for one in days]))
            .values(state=state, attempt=1, executor="e")
        )
        announce(session, Signal.RUNS_ENDED, "d")


async def _add_run(database: Database, number: int, state: str) -> None:
    values = {
        "dag_id": "d",
        "run_id": f"scheduled__{number}",
        "run_type": "scheduled",
        "state": state,
        "logical_date": day(number),
        "data_interval_start": day(number),
        "data_interval_end": day(number + 1),
        "run_after": day(number + 1),
        "queued_at": day(number + 1),
    }
    async with database.transaction() as session:
        await session.execute(insert(DagRun), [values])


async def _days(database: Database, *states: str) -> list[int]:
    """Return the days of the runs in these states, oldest run first. If no state is given, all runs count."""
    return [
        run.logical_date.day
        for run in await runs_of(database, "d")
        if run.logical_date is not None and (not states or run.state in states)
    ]


@pytest.fixture
async def daily(database: Database) -> Database:
    await add_dag(database, "d", DAILY, params={"p": 1}, is_paused=True)
    return database


async def test_a_backfill_makes_the_runs_of_its_range_in_order_and_a_few_at_a_time(
    daily: Database,
) -> None:
    started = await _start(daily, 3, 7, max_active=2)
    assert (started.state, started.intervals) == ("running", {"started": 2, "pending": 3})
    first = (await runs_of(daily, "d"))[0]
    assert (first.run_id, first.run_type, first.state) == (
        "backfill__2026-01-04T00:00:00.000000+00:00",
        "backfill",
        "queued",
    )
    assert (first.logical_date, first.data_interval_end, first.run_after) == (
        day(3),
        day(4),
        day(4),
    )
    assert first.params == {"p": 1}
    assert first.queued_at > day(31)
    runner = BackfillRunner(daily)
    await runner.run_once()
    assert await _days(daily) == [3, 4]
    await _end(daily, 4)
    await runner.run_once()
    assert await _days(daily) == [3, 4, 5]
    await _end(daily, 3, 5, state="failed")
    await runner.run_once()
    assert await _days(daily, "queued") == [6, 7]
    await _end(daily, 6, 7)
    assert (await _view(daily)).state == "done"
    assert (await _view(daily)).runs == {"success": 3, "failed": 2}


async def test_the_runner_continues_when_runs_end_and_starts_new_backfills(daily: Database) -> None:
    async def until(*days: int) -> None:
        with anyio.fail_after(30):
            # Polled, because the test sees only the database, and the database announces nothing.
            while await _days(daily) != list(days):  # noqa: ASYNC110
                await anyio.sleep(0.01)

    async with anyio.create_task_group() as tasks:
        # The sweep comes in an hour, so only wake-ups make the runner continue.
        await tasks.start(BackfillRunner(daily, sweep_every=timedelta(hours=1)).run)
        await _start(daily, 1, 3, max_active=1)
        await until(1)
        for number in (1, 2):
            await _end(daily, number)
            await until(*range(1, number + 2))
        tasks.cancel_scope.cancel()


async def test_two_runners_begin_no_interval_twice(database: Database) -> None:
    await add_dag(database, "d", DAILY)
    await _start(database, 1, 28, max_active=1)
    async with database.transaction() as session:
        await session.execute(update(DagRun).values(state="success"))
    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(BackfillRunner(database).run_once)
    assert await _days(database) == [1, 2]


@pytest.mark.parametrize(
    ("reprocess", "repeated"), [("none", []), ("failed", [2, 3]), ("all", [1, 2, 3])]
)
async def test_an_interval_with_a_run_is_repeated_only_on_request(
    daily: Database, reprocess: str, repeated: list[int]
) -> None:
    for number, state in enumerate(("success", "failed", "cancelled", "running"), 1):
        await _add_run(daily, number, state)
    planned = await _plan(daily, 1, 5, reprocess=Reprocess(reprocess))
    assert [one.logical_date.day for one in planned if one.step is Step.REPEAT] == repeated
    assert planned[-1].step is Step.RUN
    assert (planned[0].run_id, planned[0].run_state) == ("scheduled__1", "success")
    assert len(await runs_of(daily, "d")) == 4
    await _start(daily, 1, 5, reprocess=Reprocess(reprocess))
    assert await _days(daily, "queued") == [*repeated, 5]
    # No day has two runs, and the running run is left alone.
    assert await _days(daily) == [1, 2, 3, 4, 5]
    assert await _days(daily, "running") == [4]
    skipped = 4 - len(repeated)
    assert (await _view(daily)).intervals == {"started": len(repeated) + 1, "skipped": skipped}


@pytest.mark.rule("a range of partitions is extended by a day, and all of its partitions run again")
async def test_a_range_that_is_extended_by_a_day_runs_that_day_alone(daily: Database) -> None:
    await _start(daily, 4, 8)
    await _end(daily, 4, 5, 6, 7, 8)
    await _start(daily, 3, 8)
    assert await _days(daily, "queued") == [3]
    assert len(await runs_of(daily, "d")) == 6


@pytest.mark.rule("a cancelled backfill's cleared run stays queued for ever")
async def test_a_cancelled_backfill_leaves_nothing_queued_neither_new_nor_cleared(
    daily: Database,
) -> None:
    await _add_run(daily, 1, "success")
    await _add_run(daily, 2, "failed")
    started = await _start(daily, 1, 9, reprocess=Reprocess.ALL, max_active=4)
    assert await _days(daily, "queued") == [1, 2, 3, 4]
    async with daily.transaction() as session:
        await session.execute(
            update(DagRun).where(DagRun.logical_date == day(3)).values(state="running")
        )
    async with daily.transaction() as session:
        cancelled = await cancel_backfill(session, TESTER, started.id)
    assert (cancelled.state, cancelled.intervals) == ("cancelled", {"started": 4, "cancelled": 5})
    assert cancelled.runs == {"cancelled": 3, "running": 1}
    await _end(daily, 3)
    await BackfillRunner(daily).run_once()
    assert await _days(daily, "queued", "running") == []
    assert len(await runs_of(daily, "d")) == 4
    async with daily.transaction() as session:
        with pytest.raises(MoveRefused, match="has ended: cancelled"):
            await cancel_backfill(session, TESTER, started.id)
        with pytest.raises(MoveRefused, match="no backfill 99"):
            await cancel_backfill(session, TESTER, 99)


async def test_a_cancelled_backfill_leaves_no_running_task_of_a_run_whose_executor_died(
    daily: Database,
) -> None:
    started = await _start(daily, 1, 2)
    lost, alive = [run.id for run in await runs_of(daily, "d")]
    async with daily.transaction() as session:
        for pk, executor in ((lost, "dead"), (alive, "me")):
            claimed = {"state": "running", "executor": executor, "attempt": 1}
            await session.execute(update(DagRun).where(DagRun.id == pk).values(claimed))
            session.add(TaskRun(run_pk=pk, task_id="t", state="running"))
        session.add(TaskRun(run_pk=lost, task_id="before", state="success"))
        await session.flush()
        await recover_orphans(session, executor="me", is_alone=True)
    async with daily.transaction() as session:
        await cancel_backfill(session, TESTER, started.id)
    async with daily.reading() as session:
        rows = await session.scalars(select(TaskRun))
        tasks = {(row.run_pk, row.task_id): (row.state, row.ended_at is not None) for row in rows}
    assert [run.state for run in await runs_of(daily, "d")] == ["cancelled", "running"]
    assert tasks == {
        (lost, "t"): ("cancelled", True),
        (lost, "before"): ("success", False),
        (alive, "t"): ("running", False),
    }


async def test_backfills_are_listed_by_their_dag_its_assets_and_their_state(
    daily: Database,
) -> None:
    await add_asset(daily, 1, "a")
    both = {"either": {**DAILY, "assets": asset_json("a")}}
    await add_dag(daily, "e", both, assets=[1], is_paused=True)
    async with daily.transaction() as session:
        done = await start_backfill(session, TESTER, "d", day(1), day(1))
        of_e = await start_backfill(session, TESTER, "e", day(1), day(2))
    await _end(daily, 1)
    running = await _start(daily, 3, 3)
    async with daily.transaction() as session:
        await cancel_backfill(session, TESTER, of_e.id)

    async def listed(**filters: Any) -> list[int]:
        async with daily.reading() as session:
            return [one.id for one in await list_backfills(session, **filters)]

    assert await listed() == [running.id, of_e.id, done.id]
    assert await listed(dag="d") == [running.id, done.id]
    assert await listed(asset="a") == await listed(asset="x-test://a") == [of_e.id]
    assert await listed(asset="b") == []
    assert await listed(state="cancelled") == [of_e.id]
    # The limit counts only backfills in this state, so an older backfill is found.
    assert await listed(state="done", limit=1) == [done.id]
    assert await listed(state="running", limit=0) == [running.id]


async def test_of_two_cancellations_at_the_same_time_the_second_learns_that_the_backfill_is_cancelled(
    postgres: Database,
) -> None:
    await add_dag(postgres, "d", DAILY, is_paused=True)
    started = await _start(postgres, 1, 4)
    refused: list[str] = []

    async def cancel_second() -> None:
        try:
            async with postgres.transaction() as session:
                await cancel_backfill(session, TESTER, started.id)
        except MoveRefused as error:
            refused.append(error.message)

    async with anyio.create_task_group() as tasks, postgres.transaction() as session:
        await cancel_backfill(session, TESTER, started.id)
        tasks.start_soon(cancel_second)
        await _until_blocking(session)
    assert refused == [f"the backfill {started.id} has ended: cancelled"]


async def test_a_run_that_came_meanwhile_is_not_made_again(daily: Database) -> None:
    await _start(daily, 1, 3, max_active=1)
    await _add_run(daily, 2, "success")
    await _end(daily, 1)
    await BackfillRunner(daily).run_once()
    assert sorted(await _days(daily)) == [1, 2, 3]
    assert (await _view(daily)).intervals == {"started": 2, "skipped": 1}


async def test_a_dag_has_one_backfill_at_a_time(daily: Database) -> None:
    first = await _start(daily, 1, 2)
    with pytest.raises(MoveRefused, match=f"has not ended: {first.id}"):
        await _start(daily, 3, 4)
    await _end(daily, 1, 2)
    await _start(daily, 3, 4)
    async with daily.reading() as session:
        found = await list_backfills(session, dag="d")
    assert [one.state for one in found] == ["running", "done"]


async def test_no_backfill_starts_while_a_run_of_an_older_one_is_retried(daily: Database) -> None:
    first = await _start(daily, 1, 1)
    await _end(daily, 1, state="failed")
    await _start(daily, 2, 2)
    await _end(daily, 2)
    async with daily.transaction() as session:
        await retry_run(session, TESTER, "d", "backfill__2026-01-02T00:00:00.000000+00:00")
    with pytest.raises(MoveRefused, match=f"has not ended: {first.id}"):
        await _start(daily, 3, 4)


async def test_of_two_backfills_that_start_at_the_same_time_one_is_refused(
    postgres: Database,
) -> None:
    await add_dag(postgres, "d", DAILY, is_paused=True)
    refused: list[str] = []

    async def start_second() -> None:
        try:
            await _start(postgres, 1, 4, reprocess=Reprocess.ALL, max_active=2)
        except MoveRefused as error:
            refused.append(str(error))

    # The first transaction stays open until the second waits for it.
    async with anyio.create_task_group() as tasks, postgres.transaction() as session:
        first = await start_backfill(session, TESTER, "d", day(1), day(4), max_active=2)
        tasks.start_soon(start_second)
        await _until_blocking(session)
    async with postgres.reading() as session:
        assert [one.id for one in await list_backfills(session)] == [first.id]
    assert len(await _days(postgres, "queued")) == 2
    assert len(refused) == 1
    assert f"has not ended: {first.id}" in refused[0]


async def test_a_stale_dag_is_not_gone_on_with(daily: Database) -> None:
    from triggerer.store.schema.models import Dag

    await _start(daily, 1, 3, max_active=1)
    async with daily.transaction() as session:
        await session.execute(update(Dag).values(is_stale=True))
    await _end(daily, 1)
    await BackfillRunner(daily).run_once()
    assert await _days(daily) == [1]


async def test_an_impossible_backfill_is_refused(daily: Database) -> None:
    await add_dag(daily, "by_hand", None)
    async with daily.transaction() as session:
        with pytest.raises(UnknownDag):
            await start_backfill(session, TESTER, "nobody", day(1), day(2))
        with pytest.raises(DagError, match="has no timetable"):
            await start_backfill(session, TESTER, "by_hand", day(1), day(2))
        with pytest.raises(DagError, match=r"range is empty: \S+ \S+Z is after \S+ \S+Z$"):
            await start_backfill(session, TESTER, "d", day(2), day(1))
        with pytest.raises(DagError, match="no run that is due"):
            await start_backfill(
                session,
                TESTER,
                "d",
                datetime(2100, 1, 1, tzinfo=UTC),
                datetime(2100, 2, 1, tzinfo=UTC),
            )
        with pytest.raises(DagError, match="at least 1"):
            await start_backfill(session, TESTER, "d", day(1), day(2), max_active=0)
        assert await session.scalar(select(func.count()).select_from(DagRun)) == 0


def test_a_range_holds_the_logical_dates_between_its_ends_that_are_due() -> None:
    daily = CronDataIntervalTimetable("@daily", timezone="UTC")
    found = runs_between(daily, day(1), day(5), now=day(5))
    # The interval that begins on the fifth is not over.
    assert [one.logical_date for one in found] == [day(number) for number in (1, 2, 3, 4)]
    inside = runs_between(daily, day(1) + timedelta(hours=1), day(3), now=day(30))
    assert [one.logical_date for one in inside] == [day(2), day(3)]
    triggers = CronTriggerTimetable("0 6 * * *", timezone="Europe/Berlin")
    found = runs_between(triggers, day(1), day(3), now=day(30))
    assert [one.logical_date.isoformat() for one in found] == [
        "2026-01-01T05:00:00+00:00",
        "2026-01-02T05:00:00+00:00",
    ]


class GoesBack(OnceTimetable):
    """A timetable that gives the third day first, and then the second day."""

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo:
        return DagRunInfo.exact(day(3) if last_automated_data_interval is None else day(2))


def test_a_timetable_that_goes_back_is_refused_with_both_dates() -> None:
    with pytest.raises(DagError, match=r"after the logical date 2026-01-03 .* it gives 2026-01-02"):
        runs_between(GoesBack(), day(1), day(5), now=day(5))


def test_a_range_of_too_many_runs_is_refused() -> None:
    minutely = CronTriggerTimetable("* * * * *", timezone="UTC")
    with pytest.raises(DagError, match=f"more than {MOST_INTERVALS} runs"):
        runs_between(minutely, day(1), datetime(2026, 3, 1, tzinfo=UTC), now=datetime.now(UTC))


def test_a_timetable_without_dates_of_its_own_ends_or_is_refused() -> None:
    try:
        found = runs_between(ContinuousTimetable(), day(1), day(2), now=datetime.now(UTC))
    except DagError:
        return
    assert len(found) <= 1


@pytest.mark.parametrize("existing", [None, *RunState])
@pytest.mark.parametrize("reprocess", list(Reprocess))
def test_an_active_run_is_never_repeated_and_a_missing_one_always_made(
    existing: RunState | None, reprocess: Reprocess
) -> None:
    step = step_for(existing, reprocess)
    if existing is None:
        assert step is Step.RUN
    elif not existing.is_final or reprocess is Reprocess.NONE:
        assert step is Step.SKIP
    elif existing is RunState.SUCCESS:
        assert step is (Step.REPEAT if reprocess is Reprocess.ALL else Step.SKIP)
    else:
        assert step is Step.REPEAT


async def _catch_up(database: Database, *, start: int, last: int, cap: int = 16) -> None:
    """Add successful runs for the days `start` to `last`. Let catch-up create the missing runs up to 31 January."""
    for number in range(start, last + 1):
        await _add_run(database, number, "success")
    async with database.transaction() as session:
        dag = await session.get_one(Dag, "d")
        dag.is_paused, dag.catchup, dag.max_active_runs = False, True, cap
        dag.start_date, dag.end_date = day(start), day(31)
        await renew_due_moments(session, [dag])


@pytest.mark.rule("a backfill and catch-up ask for the same interval, and both create a run")
async def test_an_interval_that_a_backfill_has_run_is_not_caught_up_with_again(
    daily: Database,
) -> None:
    await _catch_up(daily, start=1, last=2, cap=100)
    await _start(daily, 4, 6)
    await _start_scheduler(daily, runs=60)
    assert sorted(await _days(daily)) == list(range(1, 32))


async def _start_scheduler(database: Database, *, runs: int) -> None:
    scheduler = Scheduler(database, max_dagruns_to_create_per_loop=3)
    with anyio.fail_after(60):
        while scheduler.runs_created < runs and await scheduler.run_once():
            pass


async def test_an_interval_that_was_caught_up_with_is_left_out_by_a_backfill_that_comes_later(
    daily: Database,
) -> None:
    await _catch_up(daily, start=1, last=2, cap=4)
    await _start_scheduler(daily, runs=4)
    started = await _start(daily, 1, 9)
    assert started.intervals == {"skipped": 6, "started": 3}
    days = await _days(daily)
    assert sorted(days) == list(range(1, 10))


async def test_a_backfill_and_schedulers_side_by_side_run_no_interval_twice(
    daily: Database,
) -> None:
    await _catch_up(daily, start=1, last=1, cap=100)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_start_backfill_in_steps, daily)
        for _ in range(2):
            tasks.start_soon(partial(_start_scheduler, runs=10), daily)
    assert sorted(await _days(daily)) == list(range(1, 32))


async def _start_backfill_in_steps(database: Database) -> None:
    runner = BackfillRunner(database)
    await _start(database, 1, 30, max_active=2)
    for _ in range(12):
        async with database.transaction() as session:
            await session.execute(
                update(DagRun).where(DagRun.run_type == "backfill").values(state="success")
            )
        await runner.run_once()


async def test_runs_that_a_backfill_starts_after_a_look_are_not_made_by_that_look(
    postgres: Database,
) -> None:
    """On PostgreSQL, the scheduler reads the DAG (`ReadDags`) without a lock, so a backfill can start meanwhile.

    The backfill changes the DAG's row. So `CreateRuns` skips the DAG, and the next look creates the runs.
    """
    await add_dag(postgres, "d", DAILY, params={"p": 1}, is_paused=True)
    await add_dag(postgres, "other", DAILY)
    await _catch_up(postgres, start=1, last=2, cap=100)
    perform_step = postgres.perform_step
    seen: list[type] = []

    async def start_meanwhile(step: StoreStep) -> list[Row]:
        seen.append(type(step))
        if seen == [ReadDags, CreateRuns]:
            await _start(postgres, 3, 6)
        return await perform_step(step)

    postgres.perform_step = start_meanwhile  # type: ignore[method-assign]

    async def find_both(session: AsyncSession) -> DueTimes:
        now = await database_now(session)
        return DueTimes(now, {"d": now, "other": now})

    with anyio.fail_after(60):
        await Scheduler(postgres, find_due_times=find_both).run_once()
    assert seen[:2] == [ReadDags, CreateRuns]
    assert sorted(await _days(postgres)) == list(range(1, 32))


async def test_the_runs_of_a_backfill_are_shown_also_once_a_later_one_has_repeated_them(
    daily: Database,
) -> None:
    await _add_run(daily, 4, "success")
    await _start(daily, 1, 4)
    await _end(daily, 1, 2, 3)
    await _end(daily, 2, state="failed")
    await _start(daily, 1, 2, reprocess=Reprocess.ALL)
    async with daily.reading() as session:
        later, first = await list_backfills(session)
    # The later backfill has queued the runs of days 1 and 2 again, but the first backfill stays
    # done. The first backfill did not create the run of day 4, which existed before.
    assert (first.state, first.runs) == ("done", {"queued": 2, "success": 1})
    assert (later.state, later.runs) == ("running", {"queued": 2})
    await _end(daily, 1, 2)
    async with daily.reading() as session:
        assert [one.runs for one in await list_backfills(session)] == [
            {"success": 2},
            {"success": 3},
        ]


async def test_new_and_repeated_runs_have_the_backfills_parameters(
    daily: Database,
) -> None:
    await _add_run(daily, 3, "failed")
    async with daily.transaction() as session:
        await session.execute(update(DagRun).values(params={"p": 9, "own": True}))
    given = {"p": 2, "q": "x"}
    started = await _start(daily, 3, 5, reprocess=Reprocess.FAILED, max_active=2, params=given)
    assert started.params == given
    await _end(daily, 3, 4)
    # Only two runs may be active at once. They have ended, so `advance` creates the third.
    async with daily.transaction() as session:
        await advance(session, started.id)
    repeated, *made = sorted(await runs_of(daily, "d"), key=lambda run: run.run_after)
    assert repeated.params == {"p": 2, "own": True, "q": "x"}
    assert [run.params for run in made] == [given, given]


async def test_without_parameters_a_repeated_run_keeps_its_own(daily: Database) -> None:
    await _add_run(daily, 3, "success")
    async with daily.transaction() as session:
        await session.execute(update(DagRun).values(params={"own": True}))
    started = await _start(daily, 3, 4, reprocess=Reprocess.ALL)
    assert started.params is None
    runs = sorted(await runs_of(daily, "d"), key=lambda run: run.run_after)
    assert [run.params for run in runs] == [{"own": True}, {"p": 1}]
