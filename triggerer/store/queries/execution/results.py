"""The step that writes what became of runs: one statement on PostgreSQL, a few on SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import orjson

from triggerer.domain.runs import RunState, TaskState
from triggerer.store.engine.clock import Clock
from triggerer.store.engine.script import Row
from triggerer.store.engine.statement import Given, given_rows, sqlite_instant
from triggerer.store.wakeups.notify import telling
from triggerer.store.wakeups.signals import Signal


@dataclass(frozen=True, slots=True)
class TaskRow:
    """The last try of one task, as it is to be stored."""

    run_pk: int
    attempt: int
    task_id: str
    state: TaskState
    try_number: int
    started_at: datetime | None
    ended_at: datetime | None
    error: str | None


@dataclass(frozen=True, slots=True)
class RunEndRow:
    """A run's end, as it is to be stored."""

    pk: int
    attempt: int
    state: RunState
    ended_at: datetime
    error: str | None
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class HeldRun:
    """What the store says about a run that this executor believes to hold."""

    attempt: int
    state: RunState
    cancel_requested: bool


@dataclass(frozen=True, slots=True)
class SaveResults:
    """A row (primary key, attempt, state, cancel_requested) for each of `pks` that `executor` was the last to claim.

    They are as they were before; `held_runs` reads them. Of those that run, in the attempt that is given, tasks
    are inserted or replaced, and the end is written, with which tasks that still run end too unless all went well.
    On PostgreSQL other processes are told of the ends in the same statement, so that it can be a transaction by itself.

    Args:
        tasks: No two of one task.
        ends: No two of one run.
        sender: How this process knows its own announcements.
    """

    executor: str
    pks: Sequence[int]
    tasks: Sequence[TaskRow]
    ends: Sequence[RunEndRow]
    sender: str

    def on_sqlite(self, connection: sqlite3.Connection, clock: Clock) -> list[Row]:
        asked = {"pks": orjson.dumps(list(self.pks)).decode(), "executor": self.executor}
        rows: list[Row] = connection.execute(_SQLITE_HELD, asked).fetchall()
        ours = {
            (pk, run.attempt)
            for pk, run in held_runs(rows).items()
            if run.state is RunState.RUNNING
        }
        tasks = [task for task in self.tasks if (task.run_pk, task.attempt) in ours]
        ends = [end for end in self.ends if (end.pk, end.attempt) in ours]
        unclean = [end for end in ends if end.state is not RunState.SUCCESS]
        for statement, values in (
            (_SQLITE_TASKS, list(map(_task_values, tasks))),
            (_SQLITE_ENDS, list(map(_end_values, ends))),
            (_SQLITE_OTHER_TASKS, list(map(_end_values, unclean))),
        ):
            if values:
                connection.execute(statement, {"rows": Given(values).as_json(sqlite_instant)})
        return rows

    def on_postgres(self) -> tuple[str, Sequence[Any]]:
        tasks = Given(list(map(_task_values, self.tasks)))
        ends = Given(list(map(_end_values, self.ends)))
        given = (tasks.as_json(datetime.isoformat), ends.as_json(datetime.isoformat))
        return _POSTGRES, (self.sender, self.executor, list(self.pks), *given)


def held_runs(rows: Sequence[Row]) -> dict[int, HeldRun]:
    """By primary key, what the rows of `SaveResults` say."""
    return {
        pk: HeldRun(attempt, RunState(state), bool(cancel)) for pk, attempt, state, cancel in rows
    }


def _task_values(row: TaskRow) -> tuple[Any, ...]:
    return (
        row.run_pk,
        row.attempt,
        row.task_id,
        row.state.value,
        row.try_number,
        row.started_at,
        row.ended_at,
        row.error,
    )


def _end_values(row: RunEndRow) -> tuple[Any, ...]:
    return row.pk, row.attempt, row.state.value, row.ended_at, row.error, row.exit_code


_TASKS: Final = given_rows(
    run_pk="bigint",
    attempt="int",
    task_id="text",
    state="text",
    try_number="int",
    started_at="timestamptz",
    ended_at="timestamptz",
    error="text",
)
_ENDS: Final = given_rows(
    pk="bigint",
    attempt="int",
    state="text",
    ended_at="timestamptz",
    error="text",
    exit_code="int",
)
_INTO_TASKS: Final = (
    "INSERT INTO task_run (run_pk, task_id, state, try_number, started_at, ended_at, error)"
)
_TASK_VALUES: Final = "run_pk, task_id, given.state, try_number, started_at, ended_at, given.error"
_OR_REPLACE: Final = """
ON CONFLICT (run_pk, task_id) DO UPDATE SET
    state = excluded.state, try_number = excluded.try_number, started_at = excluded.started_at,
    ended_at = excluded.ended_at, error = excluded.error"""
_RUN_VALUES: Final = "state = given.state, ended_at = given.ended_at, error = given.error, exit_code = given.exit_code"

_SQLITE_HELD: Final = """
SELECT id, attempt, state, cancel_requested FROM dag_run
WHERE id IN (SELECT value FROM json_each(:pks)) AND executor = :executor
"""
_SQLITE_TASKS: Final = f"""
{_INTO_TASKS} SELECT {_TASK_VALUES} FROM {_TASKS[0].format(rows=":rows")} AS given WHERE true{_OR_REPLACE}
"""
_SQLITE_ENDS: Final = f"""
UPDATE dag_run SET {_RUN_VALUES} FROM {_ENDS[0].format(rows=":rows")} AS given WHERE dag_run.id = given.pk
"""
_SQLITE_OTHER_TASKS: Final = f"""
UPDATE task_run SET state = given.state, ended_at = given.ended_at
FROM {_ENDS[0].format(rows=":rows")} AS given
WHERE task_run.run_pk = given.pk AND task_run.state = '{TaskState.RUNNING}'
"""

# A row is changed once at most in one statement, so the tasks that end with their run are those that are not given.
_POSTGRES: Final = f"""
WITH held AS MATERIALIZED (
    SELECT id, attempt, state, cancel_requested FROM dag_run
    WHERE id = ANY($3::bigint[]) AND executor = $2::text
    -- In one order everywhere, or two who write could wait for one another.
    ORDER BY id
    FOR UPDATE
), ours AS (
    SELECT id, attempt FROM held WHERE state = '{RunState.RUNNING}'
), tasks AS MATERIALIZED (
    SELECT given.* FROM {_TASKS[1].format(rows="$4")} AS given
    JOIN ours ON ours.id = given.run_pk AND ours.attempt = given.attempt
), saved AS (
    {_INTO_TASKS} SELECT {_TASK_VALUES} FROM tasks AS given{_OR_REPLACE}
), ended AS (
    UPDATE dag_run SET {_RUN_VALUES}
    FROM {_ENDS[1].format(rows="$5")} AS given
    JOIN ours ON ours.id = given.pk AND ours.attempt = given.attempt
    WHERE dag_run.id = given.pk
    RETURNING dag_run.id, dag_run.dag_id, dag_run.state, dag_run.ended_at
), others AS (
    UPDATE task_run SET state = ended.state, ended_at = ended.ended_at FROM ended
    WHERE task_run.run_pk = ended.id AND ended.state <> '{RunState.SUCCESS}'
      AND task_run.state = '{TaskState.RUNNING}'
      AND (task_run.run_pk, task_run.task_id) NOT IN (SELECT run_pk, task_id FROM tasks)
), {telling(Signal.RUNS_ENDED, sender="$1", dag_ids="SELECT array_agg(DISTINCT dag_id) FROM ended")}
SELECT id, attempt, state, cancel_requested FROM held WHERE (SELECT count(*) FROM told) >= 0
"""
