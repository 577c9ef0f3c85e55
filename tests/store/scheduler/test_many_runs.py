"""Planning for many DAGs without a lock, on PostgreSQL: two round trips."""

import re
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from sqlalchemy import text

from tests.store.explaining import Explained
from tests.store.scheduling import check_conservation, lose_answers, set_columns
from tests.store.seeding import add_asset, add_dag, asset_json, emit, queue_of, runs_of, until
from triggerer.domain.runs import RunType
from triggerer.errors import OutcomeUnknown
from triggerer.scheduler import Scheduler
from triggerer.store.dags.snapshots import ReadDags
from triggerer.store.database.opening import open_database
from triggerer.store.database.script import Row, Script, Step
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups.signals import Signal
from triggerer.store.runs.creation.create_run_step import EventSelection
from triggerer.store.runs.creation.planned_runs import CreateRuns, PlannedDag, PlannedRun

NAMES = ("one", "two", "three")


async def _dags(database: Database, **columns: Any) -> None:
    """Add the DAGs of `NAMES`, each on an asset of its own."""
    for number, name in enumerate(NAMES, 1):
        await add_asset(database, number, name)
        await add_dag(database, name, asset_json(name), assets=[number], **columns)


async def _emit_to_all(database: Database, count: int = 1) -> None:
    for number, _ in enumerate(NAMES, 1):
        await emit(database, number, count)


class _Watched:
    """Records a scheduler's steps, and calls `act` once, between a look and the creation of its runs."""

    def __init__(
        self, database: Database, act: Callable[[], Awaitable[object]] | None = None
    ) -> None:
        self._perform_step, self._perform = database.perform_step, database.perform
        self._act = act
        self.steps: list[type] = []
        database.perform_step = self._step  # type: ignore[method-assign]
        database.perform = self._script  # type: ignore[method-assign, assignment]

    async def _step(self, step: Step) -> list[Row]:
        self.steps.append(type(step))
        if isinstance(step, CreateRuns) and self._act is not None:
            act, self._act = self._act, None
            await act()
        return await self._perform_step(step)

    async def _script(self, script: Script[Any]) -> Any:
        self.steps.append(type(script))
        return await self._perform(script)


async def test_the_runs_of_many_dags_take_a_look_and_a_statement(postgres: Database) -> None:
    await _dags(postgres)
    await _emit_to_all(postgres, 2)
    watched = _Watched(postgres)
    assert await Scheduler(postgres).run_once() == len(NAMES)
    assert watched.steps == [ReadDags, CreateRuns]
    for name in NAMES:
        await check_conservation(postgres, name, 2)


async def test_each_run_takes_the_oldest_events_of_its_turn(postgres: Database) -> None:
    await _dags(postgres, events_per_run=2, max_active_runs=2)
    await _emit_to_all(postgres, 5)
    watched = _Watched(postgres)
    assert await Scheduler(postgres).run_once() == 2 * len(NAMES)
    assert watched.steps == [ReadDags, CreateRuns]
    for name in NAMES:
        first, second = await runs_of(postgres, name)
        taken = [pk for _, pk in await queue_of(postgres, name)]
        assert taken == [first.id, first.id, second.id, second.id, None]
        assert first.run_after < second.run_after


async def test_a_dag_that_has_changed_since_the_look_gets_its_run_by_another_look(
    postgres: Database,
) -> None:
    await _dags(postgres)
    await _emit_to_all(postgres)

    async def change() -> None:
        await set_columns(postgres, "two", description="changed")

    watched = _Watched(postgres, change)
    assert await Scheduler(postgres).run_once() == len(NAMES)
    assert watched.steps == [ReadDags, CreateRuns, ReadDags, watched.steps[-1]]
    for name in NAMES:
        await check_conservation(postgres, name, 1)


async def test_a_dag_that_was_paused_since_the_look_gets_no_run_and_the_others_do(
    postgres: Database,
) -> None:
    await _dags(postgres)
    await _emit_to_all(postgres)

    async def pause() -> None:
        await set_columns(postgres, "two", is_paused=True)

    _Watched(postgres, pause)
    assert await Scheduler(postgres).run_once() == len(NAMES) - 1
    assert await runs_of(postgres, "two") == []


async def test_runs_that_another_scheduler_made_after_the_look_are_not_made_again(
    postgres: Database, postgres_url: str
) -> None:
    await _dags(postgres)
    await _emit_to_all(postgres)
    async with open_database(postgres_url) as other:
        _Watched(postgres, Scheduler(other).run_once)
        assert await Scheduler(postgres).run_once() == 0
    for name in NAMES:
        await check_conservation(postgres, name, 1)
        assert len(await runs_of(postgres, name)) == 1


async def test_a_locked_dag_is_passed_over_and_waited_for_when_nothing_else_is_left(
    postgres: Database, postgres_url: str
) -> None:
    await _dags(postgres)
    await _emit_to_all(postgres)
    locked, looked = anyio.Event(), anyio.Event()
    async with open_database(postgres_url) as other, anyio.create_task_group() as tasks:

        async def hold() -> None:
            async with other.transaction() as session:
                await session.execute(text("SELECT 1 FROM dag WHERE dag_id = 'two' FOR UPDATE"))
                locked.set()
                await looked.wait()

        tasks.start_soon(hold)
        await locked.wait()
        scheduler = Scheduler(postgres)
        tasks.start_soon(scheduler.run_once)
        await until(lambda: scheduler.runs_created == len(NAMES) - 1)
        assert await runs_of(postgres, "two") == []
        looked.set()
    assert scheduler.runs_created == len(NAMES)


async def test_runs_whose_commit_nobody_saw_are_announced_all_the_same(postgres: Database) -> None:
    await _dags(postgres)
    await _emit_to_all(postgres)
    lose_answers(postgres, CreateRuns)
    with postgres.wakeups.subscribe(Signal.RUNS_QUEUED) as subscription:
        with pytest.raises(OutcomeUnknown):
            await Scheduler(postgres).run_once()
        assert subscription.take_nowait() == {Signal.RUNS_QUEUED: set(NAMES)}
    assert await Scheduler(postgres).run_once() == 0
    for name in NAMES:
        await check_conservation(postgres, name, 1)


async def test_a_run_whose_id_is_taken_takes_no_events_and_is_made_with_the_next_look(
    postgres: Database,
) -> None:
    """The clock stands still, so the second run of a DAG would get the id of its first run."""
    await _dags(postgres)
    await _emit_to_all(postgres)
    async with postgres.transaction() as session:
        # The statement's call of `clock_timestamp` finds this function first.
        await session.execute(
            text(
                "CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS "
                "$$ SELECT CASE WHEN (SELECT count(*) FROM dag_run) < 6"
                " THEN '2026-01-01'::timestamptz ELSE pg_catalog.clock_timestamp() END $$"
            )
        )
        name = await session.scalar(text("SELECT current_database()"))
        await session.execute(text(f'ALTER DATABASE "{name}" SET search_path = public, pg_catalog'))
    async with open_database(postgres.url.render_as_string(hide_password=False)) as stopped:
        assert await Scheduler(stopped).run_once() == len(NAMES)
        await emit(stopped, 1)
        await emit(stopped, 2)
        refused = anyio.Event()
        perform_step = stopped.perform_step

        async def refuse_first(step: Step) -> list[Row]:
            rows = await perform_step(step)
            if isinstance(step, CreateRuns) and not refused.is_set():
                assert [pk is None for _, pk in await queue_of(stopped, "one")] == [False, True]
                async with stopped.transaction() as session:
                    await session.execute(text("DROP FUNCTION public.clock_timestamp"))
                refused.set()
            return rows

        stopped.perform_step = refuse_first  # type: ignore[method-assign]
        scheduler = Scheduler(stopped)
        with anyio.fail_after(60):
            assert await scheduler.run_once() == 2
        assert refused.is_set()
        assert [pk is None for _, pk in await queue_of(stopped, "one")] == [False, False]


@pytest.mark.parametrize("each", [None, 2])
async def test_a_query_plan_from_an_empty_queue_does_not_walk_other_dags_events(
    postgres: Database, each: int | None
) -> None:
    """A connection keeps its plans, and the queue may grow for a long time before PostgreSQL analyzes it."""
    await _dags(postgres)
    selection = EventSelection(each, () if each is None else (1,))
    run = PlannedRun(RunType.ASSET_TRIGGERED, selection, None)
    step = CreateRuns([PlannedDag("one", "1", (run,), None)], "me")
    (plan,) = await postgres.perform_steps([Explained(step)])
    lines = [line.strip() for (line,) in plan]
    scans = [number for number, line in enumerate(lines) if " on queued_asset_event" in line]
    conditions = [lines[number + 1] for number in scans if "Scan" in lines[number]]
    assert len(conditions) == 2
    assert all(re.match(r"TID Cond|Index Cond: \(+dag_id\)::text =", one) for one in conditions), (
        plan
    )
