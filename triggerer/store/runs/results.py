"""A step (part of a transaction) that writes what executors report about their runs.

The step is one statement on PostgreSQL, and a few statements on SQLite.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from triggerer.domain.attempt_states import AttemptState
from triggerer.domain.attempts import RunEnd, RunOrder, TaskResult, Wait
from triggerer.domain.launches import Launch
from triggerer.domain.runs import RunState, TaskState
from triggerer.store.database.clock import Now
from triggerer.store.database.script import Row
from triggerer.store.database.statement import ParameterRows, Statement, in_list, parameter_rows
from triggerer.store.database.wakeups.notify import notify_cte
from triggerer.store.database.wakeups.signals import Signal


@dataclass(frozen=True, slots=True)
class AttemptUpdate:
    """A report of an executor about an attempt: its tasks, a wait, its launches, and the end of the run."""

    order: RunOrder
    tasks: tuple[TaskResult, ...] = ()
    end: RunEnd | None = None
    wait: Wait | None = None
    is_unloaded: bool = False
    """True if the attempt did not start, because the DAG's file does not load.

    The run is held. But it ends if it was cancelled, or if no file defines its DAG any longer.
    """
    launches: tuple[Launch, ...] = ()
    """The new states of launches, in order."""
    is_blocked: bool = False
    """True if the attempt did not begin, because an earlier attempt may still be at work.

    The run is held for a while, or ends if it was cancelled.
    """

    @property
    def is_unbegun(self) -> bool:
        """True if the attempt did not begin: `is_unloaded` or `is_blocked`."""
        return self.is_unloaded or self.is_blocked

    @property
    def attempt_state(self) -> AttemptState:
        """The state of the attempt after this update."""
        if self.end is None:
            return AttemptState.RUNNING
        if not all(launch.state.has_ended for launch in self.launches):
            # The run's process has ended, but something that it started elsewhere may still be at work.
            return AttemptState.UNKNOWN
        return self.end.attempt_state


@dataclass(frozen=True, slots=True)
class RunClaim:
    """The stored state of a run that this executor claimed."""

    epoch: int
    state: RunState
    cancel_requested: bool


@dataclass(frozen=True, slots=True)
class SaveResults:
    """A step: write updates of running runs.

    An update is written only if `executor` still has the run, in the epoch of the update's `order`. If the run ends
    without success, its tasks that are still running get the run's state. PostgreSQL's statement
    also notifies other processes of the ended runs, so the transaction needs no second statement.

    The step returns a row (primary key, epoch, state, cancel_requested) for each run in `updates` whose last claim is
    by `executor`, even if no update is written. The row shows the run before this step. `run_claims` reads the rows.

    Args:
        updates: Updates in the order of the reports. If several updates contain the same task, the last one counts. At
            most one update ends a run.
        sender: The id of this process. A process ignores the wake-ups that it sent itself.
    """

    executor: str
    updates: Sequence[AttemptUpdate]
    sender: str

    def on_sqlite(self, connection: sqlite3.Connection, now: Now) -> list[Row]:
        rows = _SQLITE_HELD(pks=self._pks(), executor=self.executor).on_sqlite(connection, now)
        ours = {
            (pk, run.epoch) for pk, run in run_claims(rows).items() if run.state is RunState.RUNNING
        }
        tasks = [row for row in self._task_rows() if row[:2] in ours]
        ends = [row for row in self._end_rows() if row[:2] in ours]
        attempts = [row for row in self._attempt_rows() if row[:2] in ours]
        unsuccessful = [row for row in ends if row[2] != RunState.SUCCESS.value]
        for statement, values in (
            (_SQLITE_TASKS, tasks),
            (_SQLITE_ENDS, ends),
            (_SQLITE_OTHER_TASKS, unsuccessful),
            (_SQLITE_ATTEMPTS, attempts),
        ):
            if values:
                statement(rows=ParameterRows(values)).on_sqlite(connection, now)
        return rows

    def on_postgres(self) -> tuple[str, Sequence[Any]]:
        given = (
            ParameterRows(rows).as_json(datetime.isoformat)
            for rows in (self._task_rows(), self._end_rows(), self._attempt_rows())
        )
        return _POSTGRES, (self.sender, self.executor, self._pks(), *given)

    def _pks(self) -> list[int]:
        return sorted({update.order.run_pk for update in self.updates})

    def _task_rows(self) -> list[tuple[Any, ...]]:
        rows = {}
        unsuccessful = {
            _attempt_key(update): update.end
            for update in self.updates
            if update.end is not None and update.end.state is not RunState.SUCCESS
        }
        for update in self.updates:
            attempt = _attempt_key(update)
            end = unsuccessful.get(attempt)
            for task in update.tasks:
                # If the run ends without success, end its running tasks here. PostgreSQL's statement cannot both insert
                # a task and end it (see `_POSTGRES`).
                ends = end if task.state is TaskState.RUNNING else None
                rows[*attempt, task.task_id] = (
                    *attempt,
                    task.task_id,
                    task.state.value if ends is None else ends.state.value,
                    task.try_number,
                    task.started_at,
                    task.ended_at if ends is None else ends.ended_at,
                    task.error,
                    None if task.progress is None else task.progress.to_text(),
                )
        return list(rows.values())

    def _attempt_rows(self) -> list[tuple[Any, ...]]:
        rows: dict[tuple[int, int], tuple[Any, ...]] = {}
        now = datetime.now(UTC)
        for update in self.updates:
            attempt = _attempt_key(update)
            end, state = update.end, update.attempt_state
            began = [task.started_at for task in update.tasks if task.started_at is not None]
            before = rows[attempt][4] if attempt in rows else None
            rows[attempt] = (
                *attempt,
                state.value,
                None if end is None else end.in_short,
                before or (min(began) if began else None),
                now,
                end.ended_at if end is not None and state.has_ended else None,
                now if state is AttemptState.UNKNOWN else None,
            )
        return list(rows.values())

    def _end_rows(self) -> list[tuple[Any, ...]]:
        return [
            (
                update.order.run_pk,
                update.order.epoch,
                end.state.value,
                end.ended_at,
                end.error,
                end.exit_code,
            )
            for update in self.updates
            if (end := update.end) is not None
        ]


def _attempt_key(update: AttemptUpdate) -> tuple[int, int]:
    return (update.order.run_pk, update.order.epoch)


def run_claims(rows: Sequence[Row]) -> dict[int, RunClaim]:
    """Return the runs in the rows of `SaveResults`, by primary key."""
    return {pk: RunClaim(epoch, RunState(state), bool(cancel)) for pk, epoch, state, cancel in rows}


_TASKS: Final = parameter_rows(
    run_pk="bigint",
    epoch="int",
    task_id="text",
    state="text",
    try_number="int",
    started_at="timestamptz",
    ended_at="timestamptz",
    error="text",
    progress="text",
)
_ENDS: Final = parameter_rows(
    pk="bigint",
    epoch="int",
    state="text",
    ended_at="timestamptz",
    error="text",
    exit_code="int",
)
_ATTEMPTS: Final = parameter_rows(
    run_pk="bigint",
    epoch="int",
    state="text",
    reason="text",
    launched_at="timestamptz",
    seen_at="timestamptz",
    ended_at="timestamptz",
    unknown_since="timestamptz",
)
_INTO_TASKS: Final = "INSERT INTO task_run (run_pk, task_id, state, try_number, started_at, ended_at, error, progress)"
_TASK_VALUES: Final = (
    "run_pk, task_id, given.state, try_number, started_at, ended_at, given.error, given.progress"
)
_OR_REPLACE: Final = """
ON CONFLICT (run_pk, task_id) DO UPDATE SET
    state = excluded.state, try_number = excluded.try_number, started_at = excluded.started_at,
    ended_at = excluded.ended_at, error = excluded.error, progress = excluded.progress"""
_RUN_VALUES: Final = "state = given.state, ended_at = given.ended_at, error = given.error, exit_code = given.exit_code"
_ATTEMPT_VALUES: Final = (
    "state = given.state, reason = given.reason, seen_at = given.seen_at, ended_at = given.ended_at,"
    " unknown_since = given.unknown_since, launched_at = COALESCE(run_attempt.launched_at, given.launched_at)"
)
_IS_GIVEN: Final = "run_attempt.run_pk = given.run_pk AND run_attempt.epoch = given.epoch"

_SQLITE_HELD: Final = Statement(
    "SELECT id, epoch, state, cancel_requested FROM dag_run WHERE id {IN_PKS} AND executor = {executor}",
    IN_PKS=in_list("pks", "bigint"),
)
_SQLITE_TASKS: Final = Statement(
    f"{_INTO_TASKS} SELECT {_TASK_VALUES} FROM {{GIVEN}} AS given WHERE true{_OR_REPLACE}",
    GIVEN=_TASKS,
)
_SQLITE_ENDS: Final = Statement(
    f"UPDATE dag_run SET {_RUN_VALUES} FROM {{GIVEN}} AS given WHERE dag_run.id = given.pk",
    GIVEN=_ENDS,
)
_SQLITE_OTHER_TASKS: Final = Statement(
    "UPDATE task_run SET state = given.state, ended_at = given.ended_at FROM {GIVEN} AS given "
    f"WHERE task_run.run_pk = given.pk AND task_run.state = '{TaskState.RUNNING}'",
    GIVEN=_ENDS,
)
_SQLITE_ATTEMPTS: Final = Statement(
    f"UPDATE run_attempt SET {_ATTEMPT_VALUES} FROM {{GIVEN}} AS given WHERE {_IS_GIVEN}",
    GIVEN=_ATTEMPTS,
)

# `saved` stores the reported tasks. If a run ends without success, `others` ends its other running
# tasks. `others` leaves out the reported tasks, because a PostgreSQL statement can change a row
# only once.
_POSTGRES: Final = f"""
WITH held AS MATERIALIZED (
    SELECT id, epoch, state, cancel_requested FROM dag_run
    WHERE id = ANY($3::bigint[]) AND executor = $2::text
    -- Sorted, or two writers could deadlock.
    ORDER BY id
    FOR UPDATE
), ours AS (
    SELECT id, epoch FROM held WHERE state = '{RunState.RUNNING}'
), tasks AS MATERIALIZED (
    SELECT given.* FROM {_TASKS[1].format(rows="$4")} AS given
    JOIN ours ON ours.id = given.run_pk AND ours.epoch = given.epoch
), saved AS (
    {_INTO_TASKS} SELECT {_TASK_VALUES} FROM tasks AS given{_OR_REPLACE}
), ended AS (
    UPDATE dag_run SET {_RUN_VALUES}
    FROM {_ENDS[1].format(rows="$5")} AS given
    JOIN ours ON ours.id = given.pk AND ours.epoch = given.epoch
    WHERE dag_run.id = given.pk
    RETURNING dag_run.id, dag_run.dag_id, dag_run.state, dag_run.ended_at
), attempts AS (
    UPDATE run_attempt SET {_ATTEMPT_VALUES}
    FROM {_ATTEMPTS[1].format(rows="$6")} AS given
    JOIN ours ON ours.id = given.run_pk AND ours.epoch = given.epoch
    WHERE {_IS_GIVEN}
), others AS (
    UPDATE task_run SET state = ended.state, ended_at = ended.ended_at FROM ended
    WHERE task_run.run_pk = ended.id AND ended.state <> '{RunState.SUCCESS}'
      AND task_run.state = '{TaskState.RUNNING}'
      AND (task_run.run_pk, task_run.task_id) NOT IN (SELECT run_pk, task_id FROM tasks)
), {notify_cte(Signal.RUNS_ENDED, sender="$1", dag_ids="SELECT array_agg(DISTINCT dag_id) FROM ended")}
SELECT id, epoch, state, cancel_requested FROM held WHERE (SELECT count(*) FROM notified) >= 0
"""
