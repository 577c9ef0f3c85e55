"""The progress of Spark work is stored while a run and its tasks run. Afterwards, only the tasks' progress is kept."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tests.run_orders import order
from tests.store.seeding import add_dag
from triggerer.domain.attempts import (
    RunEnd,
    RunProgress,
    SparkProgress,
    StageProgress,
    TaskProgress,
    TaskResult,
)
from triggerer.domain.runs import RunState, RunType, TaskState
from triggerer.store.database.transactions import Database
from triggerer.store.listing.views import TaskRunView
from triggerer.store.runs.attempts.claims import claim_runs
from triggerer.store.runs.creation.create_run import create_run
from triggerer.store.runs.listing import list_runs, list_task_runs
from triggerer.store.runs.results import AttemptUpdate, SaveResults
from triggerer.store.runs.transitions import record_progress

THEN = datetime(2026, 1, 1, tzinfo=UTC)
RUNNING = TaskResult("t", TaskState.RUNNING, 1, THEN, None)
TOTAL = SparkProgress(1, 0, 4, 1)


def progress_of(done: int) -> TaskProgress:
    stage = StageProgress(7, "count at a.py:1", THEN, None, 4, done)
    return TaskProgress(SparkProgress(1, 0, 4, done), (stage,))


@pytest.fixture
async def run_pk(database: Database) -> int:
    """A run that `me` executes, in epoch 1, with a running task."""
    await add_dag(database, "d", None)
    created = await database.perform(
        create_run("d", run_type=RunType.MANUAL, params={}, run_after=THEN)
    )
    claim = claim_runs(executor="me", limit=1, log_home="/home")
    await database.perform_steps([claim, results(created.pk, RUNNING)])
    return created.pk


def results(run_pk: int, *tasks: TaskResult, end: RunEnd | None = None) -> SaveResults:
    return SaveResults("me", [AttemptUpdate(order(run_pk, 1), tasks, end)], "nobody here")


async def tell(database: Database, run_pk: int, progress: RunProgress, *, epoch: int = 1) -> None:
    steps = record_progress(executor="me", run_pk=run_pk, epoch=epoch, progress=progress)
    await database.perform_steps(steps)


async def shown(database: Database) -> tuple[SparkProgress | None, TaskRunView]:
    async with database.reading() as session:
        (run,) = await list_runs(session, dag="d")
        (task,) = await list_task_runs(session, "d", run.run_id)
    return run.progress, task


async def test_the_progress_of_a_running_task_is_shown_until_another_attempt_has_the_run(
    database: Database, run_pk: int
) -> None:
    assert await shown(database) == (
        None,
        TaskRunView("t", "running", 1, THEN, None, None),
    )
    await tell(database, run_pk, RunProgress(TOTAL, {"t": progress_of(1), "gone": progress_of(1)}))
    await tell(database, run_pk, RunProgress(TOTAL, {"t": progress_of(3)}), epoch=2)
    total, task = await shown(database)
    assert (total, task.progress) == (TOTAL, progress_of(1))
    await tell(database, run_pk, RunProgress(TOTAL, {}))


async def test_a_task_that_ended_keeps_the_progress_of_its_result(
    database: Database, run_pk: int
) -> None:
    ended = replace(RUNNING, state=TaskState.SUCCESS, ended_at=THEN, progress=progress_of(4))
    end = RunEnd(RunState.SUCCESS, THEN)
    await database.perform_steps([results(run_pk, ended, end=end)])
    await tell(database, run_pk, RunProgress(TOTAL, {"t": progress_of(2)}))
    total, task = await shown(database)
    assert (total, task.state, task.progress) == (None, "success", progress_of(4))


async def test_the_next_try_of_a_task_begins_without_progress(
    database: Database, run_pk: int
) -> None:
    await tell(database, run_pk, RunProgress(TOTAL, {"t": progress_of(1)}))
    await database.perform_steps([results(run_pk, replace(RUNNING, try_number=2))])
    _, task = await shown(database)
    assert (task.try_number, task.progress) == (2, None)
