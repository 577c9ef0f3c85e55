"""Runs and tasks as the executor moves them; committing is left to the caller.

A result is taken only from the (executor, attempt) that the row still shows: an executor that was
given up on, and whose runs somebody else has queued again, can write nothing.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import (
    Table,
    bindparam,
    literal,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.runs import RunState, TaskState
from triggerer.store.models import Dag, DagRun, TaskRun

# Written out, not bound: only so can the planner see that the partial index on active runs covers
# them.
_QUEUED: Final = text("dag_run.state IN ('queued', 'running') AND dag_run.state = 'queued'")
_RUNNING: Final = text("dag_run.state IN ('queued', 'running') AND dag_run.state = 'running'")

_RUNS: Final = typing.cast(Table, DagRun.__table__)
_TASKS: Final = typing.cast(Table, TaskRun.__table__)


@dataclass(frozen=True, slots=True)
class ClaimedRun:
    """A run that is now ours to execute, and what its DAG's row says about how."""

    pk: int
    dag_id: str
    run_id: str
    run_type: str
    attempt: int
    path: str
    needs_spark: bool
    queued_at: datetime
    run_after: datetime
    logical_date: datetime | None
    data_interval_start: datetime | None
    data_interval_end: datetime | None
    params: dict[str, Any]
    log_path: str


@dataclass(frozen=True, slots=True)
class HeldRun:
    """What the store says about a run that this executor believes to hold."""

    attempt: int
    state: RunState
    cancel_requested: bool


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


async def claim_runs(
    session: AsyncSession, *, executor: str, limit: int, log_path: Callable[[str, str], str]
) -> list[ClaimedRun]:
    """Move up to `limit` queued runs to running, oldest first, for this executor alone.

    Empty if none is queued. Each claim is a new attempt. Runs that other executors are claiming
    right now are passed over, not waited for.
    """
    statement = (
        select(DagRun, Dag.path, Dag.tasks)
        .join(Dag, Dag.dag_id == DagRun.dag_id)
        .where(_QUEUED, DagRun.cancel_requested.is_(False))
        .order_by(DagRun.id)
        .limit(limit)
        .with_for_update(of=DagRun, skip_locked=True)
        .with_only_columns(
            DagRun.id,
            DagRun.dag_id,
            DagRun.run_id,
            DagRun.run_type,
            DagRun.attempt,
            DagRun.queued_at,
            DagRun.run_after,
            DagRun.logical_date,
            DagRun.data_interval_start,
            DagRun.data_interval_end,
            DagRun.params,
            Dag.path,
            Dag.tasks,
        )
    )
    claimed = [
        ClaimedRun(
            pk=row.id,
            dag_id=row.dag_id,
            run_id=row.run_id,
            run_type=row.run_type,
            attempt=row.attempt + 1,
            path=row.path,
            needs_spark=any(task.get("needs_spark") for task in row.tasks),
            queued_at=row.queued_at,
            run_after=row.run_after,
            logical_date=row.logical_date,
            data_interval_start=row.data_interval_start,
            data_interval_end=row.data_interval_end,
            params=row.params,
            log_path=log_path(row.dag_id, row.run_id),
        )
        for row in await session.execute(statement)
    ]
    if claimed:
        await session.execute(
            _CLAIM,
            [
                {
                    "pk": run.pk,
                    "executor": executor,
                    "attempt": run.attempt,
                    "started_at": datetime.now(UTC),
                    "log_path": run.log_path,
                }
                for run in claimed
            ],
        )
    return claimed


_CLAIM: Final = (
    update(_RUNS)
    .where(_RUNS.c.id == bindparam("pk"))
    .values(
        state=literal(RunState.RUNNING.value),
        executor=bindparam("executor"),
        attempt=bindparam("attempt"),
        started_at=bindparam("started_at"),
        log_path=bindparam("log_path"),
        error=None,
        exit_code=None,
    )
)


async def lock_held(
    session: AsyncSession, *, executor: str, pks: Collection[int]
) -> dict[int, HeldRun]:
    """Read, and lock until the commit, those of `pks` that this executor was the last to claim."""
    rows = await session.execute(
        select(_RUNS.c.id, _RUNS.c.attempt, _RUNS.c.state, _RUNS.c.cancel_requested)
        .where(_RUNS.c.id.in_(pks), _RUNS.c.executor == executor)
        .order_by(_RUNS.c.id)
        .with_for_update()
    )
    return {row.id: HeldRun(row.attempt, RunState(row.state), row.cancel_requested) for row in rows}


async def save_tasks(session: AsyncSession, rows: Sequence[TaskRow]) -> None:
    """Insert or replace the rows of tasks."""
    if not rows:
        return
    dialect = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
    statement = dialect.insert(_TASKS)
    columns = ("state", "try_number", "started_at", "ended_at", "error")
    statement = statement.on_conflict_do_update(
        index_elements=[_TASKS.c.run_pk, _TASKS.c.task_id],
        set_={name: statement.excluded[name] for name in columns},
    )
    await session.execute(
        statement,
        [
            {
                "run_pk": row.run_pk,
                "task_id": row.task_id,
                "state": row.state.value,
                "try_number": row.try_number,
                "started_at": row.started_at,
                "ended_at": row.ended_at,
                "error": row.error,
            }
            for row in rows
        ],
    )


async def end_runs(session: AsyncSession, rows: Sequence[RunEndRow]) -> None:
    """Write the ends of runs that `lock_held` has shown to be ours; running tasks end likewise."""
    if not rows:
        return
    await session.execute(
        _END,
        [
            {
                "pk": row.pk,
                "end_state": row.state.value,
                "end_at": row.ended_at,
                "end_error": row.error,
                "end_code": row.exit_code,
            }
            for row in rows
        ],
    )
    unclean = [row for row in rows if row.state is not RunState.SUCCESS]
    if unclean:
        await session.execute(
            _END_TASKS,
            [
                {"pk": row.pk, "end_state": row.state.value, "end_at": row.ended_at}
                for row in unclean
            ],
        )


_END: Final = (
    update(_RUNS)
    .where(_RUNS.c.id == bindparam("pk"))
    .values(
        state=bindparam("end_state"),
        ended_at=bindparam("end_at"),
        error=bindparam("end_error"),
        exit_code=bindparam("end_code"),
    )
)
_END_TASKS: Final = (
    update(_TASKS)
    .where(_TASKS.c.run_pk == bindparam("pk"), _TASKS.c.state == TaskState.RUNNING.value)
    .values(state=bindparam("end_state"), ended_at=bindparam("end_at"))
)


async def requeue_runs(
    session: AsyncSession, *, executor: str, attempts: Mapping[int, int], unstarted: bool = False
) -> int:
    """Put runs of ours back into the queue; how many were still ours.

    Args:
        attempts: By primary key, the attempt that is given up.
        unstarted: Nothing of them was executed, so that the attempt does not count either.
    """
    requeued = 0
    for pk, attempt in attempts.items():
        values: dict[str, Any] = {"state": RunState.QUEUED.value, "started_at": None}
        if unstarted:
            values["attempt"] = attempt - 1
        result = await session.execute(
            update(_RUNS)
            .where(
                _RUNS.c.id == pk, _RUNS.c.executor == executor, _RUNS.c.attempt == attempt, _RUNNING
            )
            .values(values)
            .returning(_RUNS.c.id)
        )
        requeued += len(result.all())
    return requeued


async def running_of(session: AsyncSession, *, executor: str) -> dict[int, HeldRun]:
    """The runs that the store shows as running on this executor."""
    rows = await session.execute(
        select(_RUNS.c.id, _RUNS.c.attempt, _RUNS.c.cancel_requested).where(
            _RUNNING, _RUNS.c.executor == executor
        )
    )
    return {row.id: HeldRun(row.attempt, RunState.RUNNING, row.cancel_requested) for row in rows}


async def request_cancel(session: AsyncSession, run_pk: int) -> RunState | None:
    """Cancel a run: at once while it is queued, otherwise ask its executor to.

    Returns:
        The state that the run is in now: cancelled; running (its executor will end it); success or
        failed (it had ended before). None: there is no such run. The caller announces RUNS_ENDED or
        RUNS_CANCELLED accordingly.
    """
    state = (
        await session.execute(select(_RUNS.c.state).where(_RUNS.c.id == run_pk).with_for_update())
    ).scalar_one_or_none()
    if state == RunState.QUEUED:
        values = {
            "state": RunState.CANCELLED.value,
            "cancel_requested": True,
            "ended_at": datetime.now(UTC),
        }
        await session.execute(update(_RUNS).where(_RUNS.c.id == run_pk).values(values))
        return RunState.CANCELLED
    if state == RunState.RUNNING:
        await session.execute(
            update(_RUNS).where(_RUNS.c.id == run_pk).values(cancel_requested=True)
        )
    return None if state is None else RunState(state)


async def cancel_queued(session: AsyncSession) -> list[str]:
    """End the queued runs that are to be cancelled; their DAG ids."""
    rows = await session.execute(
        update(_RUNS)
        .where(_QUEUED, _RUNS.c.cancel_requested.is_(True))
        .values(state=RunState.CANCELLED.value, ended_at=datetime.now(UTC))
        .returning(_RUNS.c.dag_id)
    )
    return list(rows.scalars())


async def any_dag_needs_spark(session: AsyncSession) -> bool:
    """Whether a DAG that may run has a task that names `spark`."""
    rows = await session.execute(
        select(Dag.tasks).where(Dag.is_stale.is_(False), Dag.is_paused.is_(False))
    )
    return any(task.get("needs_spark") for tasks in rows.scalars() for task in tasks)
