"""Queues an ended run again. The caller commits, and announces the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.attempts import Repeat
from triggerer.domain.runs import RunState, TaskState
from triggerer.store.database.transactions import database_now
from triggerer.store.schema.models import Dag, DagRun, TaskRun


@dataclass(frozen=True, slots=True)
class LockedRun:
    """A run whose row is locked until the commit, and the tasks that its DAG has now."""

    pk: int
    state: RunState
    attempt: int
    epoch: int
    repeat: Repeat
    is_stale: bool
    """True if the DAG's file, or the DAG's definition in the file, is gone."""
    path: str
    tasks: Mapping[str, TaskState]
    """The states of the tasks that the run has begun or skipped, by task id."""
    definition: Sequence[Mapping[str, Any]]
    """The tasks that the DAG's file defines now, see `Dag.tasks`."""


async def lock_run(session: AsyncSession, dag_id: str, run_id: str) -> LockedRun | None:
    """Lock a run and return it, or None if there is no such run."""
    row = await session.scalar(
        select(DagRun)
        .where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
        .with_for_update()
        .execution_options(populate_existing=True)
    )
    if row is None:
        return None
    dag = await session.get_one(Dag, dag_id)
    tasks = await session.execute(
        select(TaskRun.task_id, TaskRun.state).where(TaskRun.run_pk == row.id)
    )
    return LockedRun(
        pk=row.id,
        state=RunState(row.state),
        attempt=row.attempt,
        epoch=row.epoch,
        repeat=Repeat.from_json(row.again),
        is_stale=dag.is_stale,
        path=dag.path,
        tasks={task_id: TaskState(state) for task_id, state in tasks},
        definition=dag.tasks,
    )


async def queue_again(
    session: AsyncSession,
    run: LockedRun,
    *,
    kept: Mapping[str, TaskState],
    cleared: Mapping[str, int],
) -> None:
    """Queue the run for another attempt.

    Args:
        kept: The tasks that keep their results, see `Repeat.kept`. The rows of all other tasks are deleted, as if they
            had never begun.
        cleared: How often each task was cleared, see `Repeat.cleared`.
    """
    # `LeftLaunches` may be stopping the launches of the ended run at this moment. So the next attempt does not wait for
    # one of these launches: it stops them too.
    repeat = Repeat(kept, cleared, after_attempt=run.attempt, after_epoch=run.epoch)
    await session.execute(
        update(DagRun)
        .where(DagRun.id == run.pk)
        .values(
            state=RunState.QUEUED.value,
            again=repeat.to_json(),
            queued_at=await database_now(session),
            started_at=None,
            first_started_at=None,
            held_until=None,
            ended_at=None,
            error=None,
            exit_code=None,
            waiting_for=None,
            waiting_since=None,
            cancel_requested=False,
            callback=None,
            callback_attempts=0,
            notified_at=None,
        )
    )
    await session.execute(
        delete(TaskRun).where(TaskRun.run_pk == run.pk, TaskRun.task_id.not_in(kept))
    )
