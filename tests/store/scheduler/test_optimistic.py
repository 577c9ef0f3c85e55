"""Planning for one DAG without a lock, on PostgreSQL."""

from collections.abc import Awaitable, Callable

import anyio
import pytest
from sqlalchemy import text

from tests.store.scheduling import (
    check_conservation,
    end,
    lose_answers,
    one_asset,
    set_columns,
    two_assets,
)
from tests.store.seeding import (
    add_alias,
    add_asset,
    add_dag,
    emit,
    queue_of,
    runs_of,
)
from triggerer.domain.runs import RunType
from triggerer.errors import OutcomeUnknown
from triggerer.scheduler import Scheduler
from triggerer.store.dags.candidates import lock_and_read
from triggerer.store.dags.snapshots import ReadDags
from triggerer.store.database.opening import open_database
from triggerer.store.database.script import Row, Step, perform
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups.signals import Signal
from triggerer.store.events.emit import NewAssetEvent, record_events
from triggerer.store.runs.creation.create_run import create_run
from triggerer.store.runs.creation.create_run_step import CreateRun, EventSelection


class _Interrupted:
    """Calls `act` once, after a scheduler's look and before the look's run is created."""

    def __init__(self, database: Database, act: Callable[[], Awaitable[object]]) -> None:
        self._perform_step = database.perform_step
        self._act = act
        self.is_done = False
        database.perform_step = self  # type: ignore[method-assign, assignment]

    async def __call__(self, step: Step) -> list[Row]:
        if isinstance(step, CreateRun) and not self.is_done:
            self.is_done = True
            await self._act()
        return await self._perform_step(step)


async def test_work_that_another_scheduler_did_after_the_look_is_not_done_again(
    postgres_url: str, postgres: Database
) -> None:
    await two_assets(postgres)
    await emit(postgres, 1)
    await emit(postgres, 2)
    async with open_database(postgres_url) as other:
        interrupted = _Interrupted(postgres, Scheduler(other).run_once)
        assert await Scheduler(postgres).run_once() == 0
        assert interrupted.is_done
        await check_conservation(postgres, "join", 2)
        assert len(await runs_of(postgres, "join")) == 1


async def test_the_cap_holds_although_another_scheduler_has_reached_it_since_the_look(
    postgres_url: str, postgres: Database
) -> None:
    await one_asset(postgres, max_active_runs=1)
    await emit(postgres, 1)
    async with open_database(postgres_url) as other:

        async def overtake() -> None:
            await Scheduler(other).run_once()
            await emit(other, 1)

        _Interrupted(postgres, overtake)
        assert await Scheduler(postgres).run_once() == 0
        (run,) = await runs_of(postgres, "report")
        assert [pk for _, pk in await queue_of(postgres, "report")] == [run.id, None]


@pytest.mark.parametrize("column", ["is_paused", "is_stale"])
async def test_a_dag_that_was_paused_or_went_since_the_look_gets_no_run(
    postgres: Database, column: str
) -> None:
    await one_asset(postgres)
    await emit(postgres, 1)

    async def change() -> None:
        await set_columns(postgres, "report", **{column: True})

    _Interrupted(postgres, change)
    assert await Scheduler(postgres).run_once() == 0
    assert await runs_of(postgres, "report") == []


async def test_a_look_waits_for_another_planning_scheduler_and_sees_its_result(
    postgres_url: str, postgres: Database
) -> None:
    """Another transaction locks the DAG's row before the run is created, and changes the row."""
    await one_asset(postgres)
    await emit(postgres, 1)
    async with open_database(postgres_url) as other, anyio.create_task_group() as tasks:

        async def lock_and_take() -> None:
            begun = anyio.Event()

            async def plan() -> None:
                async with other.transaction() as session:
                    await perform(session, lock_and_read(["report"], bound=10))
                    run = await perform(
                        session,
                        create_run(
                            "report",
                            run_type=RunType.ASSET_TRIGGERED,
                            params={},
                            selection=EventSelection(),
                        ),
                    )
                    taken.append(run.pk)
                    begun.set()
                    async with other.reading() as beside:
                        waits = (
                            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                        )
                        while not await beside.scalar(text(waits)):  # noqa: ASYNC110
                            await anyio.sleep(0.01)

            tasks.start_soon(plan)
            await begun.wait()

        taken: list[int] = []
        _Interrupted(postgres, lock_and_take)
        assert await Scheduler(postgres).run_once() == 0
    (run,) = await runs_of(postgres, "report")
    assert [run.id] == taken
    assert [pk for _, pk in await queue_of(postgres, "report")] == taken


async def test_a_run_whose_commit_nobody_saw_is_announced_all_the_same(postgres: Database) -> None:
    await one_asset(postgres)
    await emit(postgres, 1)
    lose_answers(postgres, CreateRun)
    with postgres.wakeups.subscribe(Signal.RUNS_QUEUED) as subscription:
        with pytest.raises(OutcomeUnknown):
            await Scheduler(postgres).run_once()
        assert subscription.take_nowait() == {Signal.RUNS_QUEUED: {"report"}}
    assert await Scheduler(postgres).run_once() == 0
    await check_conservation(postgres, "report", 1)


async def test_a_run_takes_a_look_and_a_statement(postgres: Database) -> None:
    await two_assets(postgres)
    scheduler, steps, perform_step = Scheduler(postgres), list[Step](), postgres.perform_step

    async def noted(step: Step) -> list[Row]:
        steps.append(step)
        return await perform_step(step)

    postgres.perform_step = noted  # type: ignore[method-assign]
    for number in range(1, 4):
        await emit(postgres, 1)
        assert await scheduler.run_once() == 0
        await emit(postgres, 2)
        await emit(postgres, 2)
        assert await scheduler.run_once() == 1
        assert [type(step) for step in steps] == [ReadDags, ReadDags, CreateRun] * number
    await check_conservation(postgres, "join", 3 * 3)


async def test_the_cap_holds_and_the_end_of_a_run_frees_it(postgres: Database) -> None:
    await one_asset(postgres, max_active_runs=1)
    scheduler = Scheduler(postgres)
    for number in range(1, 4):
        await emit(postgres, 1)
        assert await scheduler.run_once() == 1
        await emit(postgres, 1)
        assert await scheduler.run_once() == 0
        await end(postgres, *await runs_of(postgres, "report"))
        assert await scheduler.run_once() == 1
        await end(postgres, *await runs_of(postgres, "report"))
        await check_conservation(postgres, "report", 2 * number)


async def test_no_run_is_made_of_events_that_another_scheduler_took(
    postgres_url: str, postgres: Database
) -> None:
    await one_asset(postgres)
    scheduler = Scheduler(postgres)
    async with open_database(postgres_url) as other:
        rival = Scheduler(other)
        for number in range(1, 5):
            await emit(postgres, 1)
            assert await rival.run_once() + await scheduler.run_once() == 1
            assert len(await runs_of(postgres, "report")) == number
    await check_conservation(postgres, "report", 4)


async def test_a_dag_that_takes_its_oldest_events_is_planned_under_a_lock(
    postgres: Database,
) -> None:
    await one_asset(postgres, events_per_run=1, max_active_runs=10)
    await emit(postgres, 1, 3)
    assert await Scheduler(postgres).run_once() == 3
    await check_conservation(postgres, "report", 3)


async def test_an_alias_that_no_longer_resolves_to_an_asset_makes_no_run(
    postgres: Database,
) -> None:
    await add_asset(postgres, 1, "result")
    await add_alias(postgres, 5, "results")
    await add_dag(postgres, "report", {"alias": "results"}, aliases=[5])
    scheduler = Scheduler(postgres)

    async def resolve() -> None:
        async with postgres.transaction() as session:
            await record_events(session, [NewAssetEvent(1, alias_ids=(5,))])

    await resolve()
    assert await scheduler.run_once() == 1
    await resolve()
    async with postgres.transaction() as session:
        await session.execute(text("DELETE FROM asset_alias_member"))
    assert await scheduler.run_once() == 0
    await resolve()
    assert await scheduler.run_once() == 1
