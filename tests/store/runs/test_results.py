"""An executor claims runs and stores their results, in steps that are whole transactions."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from sqlalchemy import select, text, update

from tests.run_orders import order
from tests.store.explaining import Explained
from tests.store.seeding import add_dag, runs_of
from triggerer.domain.attempts import RunEnd, RunOrder, TaskResult
from triggerer.domain.runs import RunState, RunType, TaskState
from triggerer.errors import RowRefused
from triggerer.executor.result_writer import ResultWriter
from triggerer.observability.metrics import table
from triggerer.store.dags.snapshots import ReadDags
from triggerer.store.database.opening import open_database
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups.listening import listen
from triggerer.store.database.wakeups.signals import Signal
from triggerer.store.runs.attempts.claims import claim_runs, claimed_runs
from triggerer.store.runs.creation.create_run import create_run
from triggerer.store.runs.creation.create_run_step import CreateRun, EventSelection
from triggerer.store.runs.creation.planned_runs import CreateRuns, PlannedDag, PlannedRun
from triggerer.store.runs.results import AttemptUpdate, SaveResults, run_claims
from triggerer.store.schema.models import DagRun, TaskRun

THEN = datetime(2026, 1, 1, tzinfo=UTC)


async def queue(database: Database, dag_id: str, count: int) -> list[int]:
    pks = []
    for number in range(count):
        at = THEN + timedelta(seconds=number)
        created = await database.perform(
            create_run(dag_id, run_type=RunType.MANUAL, params={"n": number}, run_after=at)
        )
        pks.append(created.pk)
    return pks


async def claim(database: Database, executor: str = "me", limit: int = 100) -> list[RunOrder]:
    (rows,) = await database.perform_steps(
        [claim_runs(executor=executor, limit=limit, log_home="/home")]
    )
    return claimed_runs(rows, executor="me", log_home="/home")


def task(task_id: str = "t", **values: Any) -> TaskResult:
    given = {"state": TaskState.SUCCESS, "started_at": THEN, "ended_at": THEN}
    return TaskResult(task_id, try_number=1, **{**given, **values})


def end(state: RunState = RunState.SUCCESS, error: str | None = None) -> RunEnd:
    return RunEnd(state, THEN, error)


def update_of(
    pk: int, *tasks: TaskResult, end: RunEnd | None = None, attempt: int = 1
) -> AttemptUpdate:
    return AttemptUpdate(order(pk, attempt), tasks, end)


def results(*updates: AttemptUpdate) -> SaveResults:
    return SaveResults("me", updates, "nobody here")


async def tasks_of(database: Database, run_pk: int) -> dict[str, tuple[str, datetime | None]]:
    async with database.reading() as session:
        rows = await session.scalars(select(TaskRun).where(TaskRun.run_pk == run_pk))
        return {row.task_id: (row.state, row.ended_at) for row in rows}


async def test_the_oldest_runs_are_claimed_with_all_that_their_execution_needs(
    database: Database,
) -> None:
    await add_dag(database, "d", None)
    first, second, third = await queue(database, "d", 3)
    claimed = await claim(database, limit=2)
    assert [(run.run_pk, run.attempt, run.params) for run in claimed] == [
        (first, 1, {"n": 0}),
        (second, 1, {"n": 1}),
    ]
    assert claimed[0].dag_id == "d"
    assert claimed[0].path
    assert claimed[0].run_after == claimed[0].queued_at == THEN
    stored = {run.id: run for run in await runs_of(database, "d")}
    assert (stored[first].state, stored[first].executor) == ("running", "me")
    assert stored[first].log_home == "/home"
    assert stored[first].started_at is not None
    assert stored[third].state == "queued"
    assert [run.run_pk for run in await claim(database)] == [third]
    assert await claim(database) == []


async def test_two_executors_that_claim_at_once_share_the_queued_runs(postgres: Database) -> None:
    await add_dag(postgres, "d", None)
    pks = await queue(postgres, "d", 40)
    taken: list[int] = []

    async def take(name: str) -> None:
        while claimed := await claim(postgres, name, limit=3):
            taken.extend(run.run_pk for run in claimed)

    async with anyio.create_task_group() as tasks:
        for name in ("one", "two", "three"):
            tasks.start_soon(take, name)
    assert sorted(taken) == pks


async def test_a_run_that_somebody_else_is_changing_is_passed_over(postgres: Database) -> None:
    await add_dag(postgres, "d", None)
    first, second = await queue(postgres, "d", 2)
    async with postgres.transaction() as session:
        await session.execute(select(DagRun).where(DagRun.id == first).with_for_update())
        assert [run.run_pk for run in await claim(postgres)] == [second]
    assert [run.run_pk for run in await claim(postgres)] == [first]


async def test_a_run_that_is_to_be_cancelled_is_not_claimed(database: Database) -> None:
    await add_dag(database, "d", None)
    (pk,) = await queue(database, "d", 1)
    async with database.transaction() as session:
        await session.execute(update(DagRun).where(DagRun.id == pk).values(cancel_requested=True))
    assert await claim(database) == []


async def test_results_are_written_and_the_next_runs_claimed_together(database: Database) -> None:
    await add_dag(database, "d", None)
    first, second = await queue(database, "d", 2)
    await claim(database, limit=1)
    held, claimed = await database.perform_steps(
        [
            results(update_of(first, task(), end=end())),
            claim_runs(executor="me", limit=1, log_home="/home"),
        ]
    )
    # The first step reports the run as it was before this result was stored.
    assert run_claims(held)[first].state is RunState.RUNNING
    assert [run.run_pk for run in claimed_runs(claimed, executor="me", log_home="/home")] == [
        second
    ]
    stored = {run.id: run for run in await runs_of(database, "d")}
    assert (stored[first].state, stored[first].ended_at) == ("success", THEN)
    assert await tasks_of(database, first) == {"t": ("success", THEN)}


async def test_a_second_result_of_a_task_replaces_the_first(database: Database) -> None:
    await add_dag(database, "d", None)
    (pk,) = await queue(database, "d", 1)
    await claim(database)
    running = task(state=TaskState.RUNNING, ended_at=None)
    await database.perform_steps([results(update_of(pk, running))])
    assert await tasks_of(database, pk) == {"t": ("running", None)}
    await database.perform_steps([results(update_of(pk, task()))])
    assert await tasks_of(database, pk) == {"t": ("success", THEN)}


@pytest.mark.parametrize("state", [RunState.FAILED, RunState.CANCELLED])
async def test_tasks_that_run_end_with_a_run_that_did_not_go_well(
    database: Database, state: RunState
) -> None:
    await add_dag(database, "d", None)
    (pk,) = await queue(database, "d", 1)
    await claim(database)
    running = [task(name, state=TaskState.RUNNING, ended_at=None) for name in ("a", "b")]
    await database.perform_steps([results(update_of(pk, *running, task("c")))])
    # The result of `a` comes together with the run's end, and is stored as it is.
    told = task("a", state=TaskState.SUCCESS, ended_at=THEN - timedelta(1))
    await database.perform_steps([results(update_of(pk, told, end=end(state, "why")))])
    assert await tasks_of(database, pk) == {
        "a": ("success", THEN - timedelta(1)),
        "b": (state.value, THEN),
        "c": ("success", THEN),
    }
    (run,) = await runs_of(database, "d")
    assert (run.state, run.error) == (state, "why")


@pytest.mark.parametrize("state", [RunState.FAILED, RunState.CANCELLED])
async def test_a_task_that_is_reported_as_running_together_with_the_runs_end_ends_with_the_run(
    database: Database, state: RunState
) -> None:
    """During a slow commit, the report of the task and the report of the run's end arrive. One step writes both.

    In an earlier version, the task then stayed running forever on PostgreSQL.
    """
    await add_dag(database, "d", None)
    (pk,) = await queue(database, "d", 1)
    await claim(database)
    running = task(state=TaskState.RUNNING, ended_at=None)
    await database.perform_steps(
        [results(update_of(pk, running), update_of(pk, end=end(state, "why")))]
    )
    assert await tasks_of(database, pk) == {"t": (state.value, THEN)}


@pytest.mark.parametrize("change", ["executor = 'other'", "epoch = 2", "state = 'success'"])
async def test_nothing_is_written_of_a_run_that_another_executor_has(
    database: Database, change: str
) -> None:
    await add_dag(database, "d", None)
    lost, ours = await queue(database, "d", 2)
    await claim(database)
    async with database.transaction() as session:
        await session.execute(text(f"UPDATE dag_run SET {change} WHERE id = {lost}"))
    (rows,) = await database.perform_steps(
        [
            results(
                update_of(lost, task(), end=end(RunState.FAILED)),
                update_of(ours, task(), end=end()),
            )
        ]
    )
    held = run_claims(rows)
    assert (lost in held) == (change != "executor = 'other'")
    stored = {run.id: run for run in await runs_of(database, "d")}
    assert stored[lost].state == ("success" if "success" in change else "running")
    assert stored[lost].ended_at is None
    assert await tasks_of(database, lost) == {}
    assert stored[ours].state == "success"
    assert await tasks_of(database, ours) == {"t": ("success", THEN)}


async def test_results_wait_for_whoever_takes_the_run_away_and_then_see_it(
    postgres: Database,
) -> None:
    await add_dag(postgres, "d", None)
    (pk,) = await queue(postgres, "d", 1)
    await claim(postgres)
    answers: list[Any] = []

    async def save() -> None:
        answers.extend(await postgres.perform_steps([results(update_of(pk, task(), end=end()))]))

    async with anyio.create_task_group() as tasks, postgres.transaction() as session:
        await session.execute(
            update(DagRun).where(DagRun.id == pk).values(executor="other", attempt=2, epoch=2)
        )
        tasks.start_soon(save)
        async with postgres.reading() as beside:
            while not await beside.scalar(  # noqa: ASYNC110 (the server's doing)
                text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
            ):
                await anyio.sleep(0.01)
    assert answers == [[]]
    (run,) = await runs_of(postgres, "d")
    assert (run.state, run.executor) == ("running", "other")
    assert await tasks_of(postgres, pk) == {}


async def test_other_processes_are_told_of_runs_that_end_and_of_nothing_else(
    postgres: Database, postgres_url: str
) -> None:
    await add_dag(postgres, "d", None)
    await add_dag(postgres, "e", None)
    first, _ = await queue(postgres, "d", 2)
    (other,) = await queue(postgres, "e", 1)
    await claim(postgres)
    async with open_database(postgres_url) as elsewhere, anyio.create_task_group() as tasks:
        await tasks.start(listen, elsewhere)
        with elsewhere.wakeups.subscribe(Signal.RUNS_ENDED) as subscription:
            await postgres.perform_steps([results(update_of(first, task()))])
            await postgres.perform_steps([results(update_of(other, end=end(), attempt=7))])
            await postgres.perform_steps([results(update_of(first, end=end()))])
            with anyio.fail_after(10):
                assert await subscription.wait() == {Signal.RUNS_ENDED: {"d"}}
        tasks.cancel_scope.cancel()


async def test_a_step_that_is_refused_takes_no_other_with_it_on_postgresql(
    postgres: Database,
) -> None:
    await add_dag(postgres, "d", None)
    first, second = await queue(postgres, "d", 2)
    await claim(postgres, limit=1)
    refused = results(update_of(first, task(error="\0"), end=end()))
    with pytest.raises(RowRefused):
        await postgres.perform_steps(
            [claim_runs(executor="me", limit=1, log_home="/home"), refused]
        )
    stored = {run.id: run.state for run in await runs_of(postgres, "d")}
    assert stored == {first: "running", second: "running"}


async def test_no_plan_goes_through_a_table_that_grows_not_even_while_it_is_small(
    postgres: Database,
) -> None:
    """A connection keeps a plan that it made while the tables were small. A scan gets slow when the tables grow."""
    await add_dag(postgres, "d", None)
    (pk,) = await queue(postgres, "d", 1)
    steps = [
        claim_runs(executor="me", limit=1, log_home="/home"),
        results(update_of(pk, task(), end=end())),
        ReadDags(["d"], 10),
        CreateRun("d", RunType.ASSET_TRIGGERED, {}, None, None, EventSelection()),
        CreateRun("d", RunType.ASSET_TRIGGERED, {}, None, None, EventSelection(1, (1,))),
        *(
            CreateRuns([PlannedDag("d", "1", (PlannedRun(kind, selection, None),), None)], "me")
            for kind, selection in (
                (RunType.SCHEDULED, None),
                (RunType.ASSET_TRIGGERED, EventSelection()),
                (RunType.ASSET_TRIGGERED, EventSelection(1, (1,))),
            )
        ),
    ]
    for plan in await postgres.perform_steps([Explained(step) for step in steps]):
        lines = [line for (line,) in plan]
        grows = r"Seq Scan on (dag_run|task_run|asset_event|queued_asset_event)"
        assert not [line for line in lines if re.search(grows, line)], "\n".join(lines)


@pytest.mark.parametrize("counts_dags", [False, True])
async def test_the_runs_of_each_dag_are_counted_on_request(
    sqlite: Database, *, counts_dags: bool
) -> None:
    counters = (table.RUNS, table.DAG_RUNS, table.DAG_RUN_SECONDS)
    for counter in counters:
        counter.clear()
    await add_dag(sqlite, "d", None)
    await queue(sqlite, "d", 2)
    writer = ResultWriter(sqlite, "me", counts_dags=counts_dags)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run)
        for run in await claim(sqlite):
            ended = RunEnd(RunState.SUCCESS, run.queued_at + timedelta(seconds=5))
            writer.submit_nowait(AttemptUpdate(run, end=ended))
        await writer.written()
        tasks.cancel_scope.cancel()
    found = [counter.values() for counter in counters]
    for counter in counters:
        counter.clear()
    of_dag = ("d", "success")
    by_dag = [{of_dag: 2}, {of_dag: 10.0}] if counts_dags else [{}, {}]
    assert found == [{("success",): 2}, *by_dag]
