"""The step that writes what became of runs: one statement on PostgreSQL, a few on SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from triggerer.domain.runs import RunState, TaskState
from triggerer.store.clock import Clock
from triggerer.store.script import Row
from triggerer.store.statement import Given, Statement, given_rows


@dataclass(frozen=True, slots=True)
class TaskRow:
    """The last try of one task, as it is to be stored."""

    run_pk: int
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
    state: RunState
    ended_at: datetime
    error: str | None
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class SaveResults:
    """A step without rows: tasks are inserted or replaced, and runs ended, which the caller has locked.

    Args:
        tasks: No two of one task.
        ends: No two of one run.
    """

    tasks: Sequence[TaskRow]
    ends: Sequence[RunEndRow]

    def on_sqlite(self, connection: sqlite3.Connection, clock: Clock) -> list[Row]:
        if self.tasks:
            _SAVE_TASKS(rows=self._given_tasks()).on_sqlite(connection, clock)
        if self.ends:
            _END(rows=self._given_ends()).on_sqlite(connection, clock)
        return []

    def on_postgres(self) -> tuple[str, Sequence[Any]]:
        if not self.ends:
            return _SAVE_TASKS(rows=self._given_tasks()).on_postgres()
        if not self.tasks:
            return _END(rows=self._given_ends()).on_postgres()
        (tasks,) = _SAVE_TASKS(rows=self._given_tasks()).on_postgres()[1]
        (ends,) = _END(rows=self._given_ends()).on_postgres()[1]
        return _BOTH, (tasks, ends)

    def _given_tasks(self) -> Given:
        return Given(
            [
                (
                    row.run_pk,
                    row.task_id,
                    row.state.value,
                    row.try_number,
                    row.started_at,
                    row.ended_at,
                    row.error,
                )
                for row in self.tasks
            ]
        )

    def _given_ends(self) -> Given:
        return Given(
            [(row.pk, row.state.value, row.ended_at, row.error, row.exit_code) for row in self.ends]
        )


_SAVE_TASKS: Final = Statement(
    """
INSERT INTO task_run (run_pk, task_id, state, try_number, started_at, ended_at, error)
SELECT run_pk, task_id, state, try_number, started_at, ended_at, error FROM {GIVEN} AS given
WHERE true
ON CONFLICT (run_pk, task_id) DO UPDATE SET
    state = excluded.state, try_number = excluded.try_number, started_at = excluded.started_at,
    ended_at = excluded.ended_at, error = excluded.error
""",
    GIVEN=given_rows(
        run_pk="bigint",
        task_id="text",
        state="text",
        try_number="int",
        started_at="timestamptz",
        ended_at="timestamptz",
        error="text",
    ),
)
_END: Final = Statement(
    """
UPDATE dag_run SET state = given.state, ended_at = given.ended_at, error = given.error,
       exit_code = given.exit_code
FROM {GIVEN} AS given WHERE dag_run.id = given.pk
""",
    GIVEN=given_rows(
        pk="bigint", state="text", ended_at="timestamptz", error="text", exit_code="int"
    ),
)
_BOTH: Final = f"WITH saved AS ({_SAVE_TASKS.postgres}) {_END.postgres.replace('$1', '$2')}"
