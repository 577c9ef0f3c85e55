"""Changes the states of runs and tasks: waits, progress, queueing again, and cancelling. The caller commits.

An executor's change is stored only while the run's row shows this executor and the epoch of its claim. An executor that
seemed dead can no longer write, because its runs were queued again.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Final

from sqlalchemy import ColumnElement, Table, and_, case, delete, literal, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.attempt_states import AttemptState
from triggerer.domain.attempts import RunProgress
from triggerer.domain.runs import RunState, TaskState
from triggerer.store.database.script import perform
from triggerer.store.database.statement import (
    BoundStatement,
    ParameterRows,
    Statement,
    parameter_rows,
)
from triggerer.store.listing.filters import some_of
from triggerer.store.runs.attempts.claims import needs_spark
from triggerer.store.runs.attempts.steps import leave_attempts
from triggerer.store.runs.results import RunClaim
from triggerer.store.runs.state_conditions import QUEUED, RUNNING
from triggerer.store.schema.models import Dag, DagRun, RunAttempt, TaskRun

_RUNS: Final = typing.cast(Table, DagRun.__table__)
_TASKS: Final = typing.cast(Table, TaskRun.__table__)


def record_wait(
    *,
    executor: str,
    run_pk: int,
    epoch: int,
    waiting_for: str | None,
    waiting_since: datetime | None,
) -> BoundStatement:
    """A step: store the reason why an attempt of this executor waits. It has no effect once the attempt has ended.

    Args:
        waiting_for: The reason. None: the attempt no longer waits.
        waiting_since: When the wait began. None: the attempt no longer waits.
    """
    return _WAIT(
        executor=executor,
        run_pk=run_pk,
        epoch=epoch,
        waiting_for=waiting_for,
        waiting_since=waiting_since,
    )


_WAIT: Final = Statement(
    """
UPDATE dag_run SET waiting_for = {waiting_for}, waiting_since = {waiting_since}
WHERE id = {run_pk} AND executor = {executor} AND epoch = {epoch} AND state = 'running'
"""
)


def record_progress(
    *, executor: str, run_pk: int, epoch: int, progress: RunProgress
) -> list[BoundStatement]:
    """Return steps that store how much Spark work an attempt of this executor has done.

    The steps have no effect once the attempt has ended. They also skip tasks that have ended, because the result of a
    task contains the task's final progress.
    """
    attempt = {"executor": executor, "run_pk": run_pk, "epoch": epoch}
    steps = [_PROGRESS(**attempt, progress=json.dumps(asdict(progress.total)))]
    if progress.tasks:
        rows = [(task_id, one.to_text()) for task_id, one in progress.tasks.items()]
        steps.append(_TASK_PROGRESS(**attempt, rows=ParameterRows(rows)))
    return steps


_PROGRESS: Final = Statement(
    """
UPDATE dag_run SET progress = {progress}
WHERE id = {run_pk} AND executor = {executor} AND epoch = {epoch} AND state = 'running'
"""
)
_TASK_PROGRESS: Final = Statement(
    """
UPDATE task_run SET progress = given.progress FROM {GIVEN} AS given, dag_run AS run
WHERE run.id = {run_pk} AND run.executor = {executor} AND run.epoch = {epoch} AND run.state = 'running'
  AND task_run.run_pk = run.id AND task_run.task_id = given.task_id AND task_run.state = 'running'
""",
    GIVEN=parameter_rows(task_id="text", progress="text"),
)


async def requeue_runs(
    session: AsyncSession, *, executor: str, epochs: Mapping[int, int], have_begun: bool = True
) -> int:
    """Queue runs of this executor again, for instance because it stops. Return how many runs were queued again.

    The runs' current attempts do not count towards `MAX_ATTEMPTS`, because they did not kill the executor.

    Args:
        epochs: The epoch of each run, by primary key.
        have_begun: False if no worker has started any of these attempts. Then the rows of the attempts are deleted.
    """
    requeued: dict[int, int] = {}
    for pk, epoch in epochs.items():
        is_first = and_(_RUNS.c.attempt == 1, literal(not have_begun))
        result = await session.execute(
            update(_RUNS)
            .where(_RUNS.c.id == pk, _RUNS.c.executor == executor, _RUNS.c.epoch == epoch, RUNNING)
            .values(
                state=RunState.QUEUED.value,
                started_at=None,
                attempt=_RUNS.c.attempt - 1,
                # The claim of a first attempt sets `first_started_at`. Clear it if no worker started that attempt.
                first_started_at=case((is_first, None), else_=_RUNS.c.first_started_at),
            )
            .returning(_RUNS.c.id)
        )
        if result.all():
            requeued[pk] = epoch
    if have_begun:
        reasons = dict.fromkeys(requeued, "the service stopped, and the run was queued again")
        await perform(session, leave_attempts(requeued, AttemptState.KILLED, reasons))
    else:
        for pk, epoch in requeued.items():
            await session.execute(
                delete(RunAttempt).where(RunAttempt.run_pk == pk, RunAttempt.epoch == epoch)
            )
    return len(requeued)


async def running_of(session: AsyncSession, *, executor: str) -> dict[int, RunClaim]:
    """Return the runs that the store shows as running on this executor."""
    rows = await session.execute(
        select(_RUNS.c.id, _RUNS.c.epoch, _RUNS.c.cancel_requested).where(
            RUNNING, _RUNS.c.executor == executor
        )
    )
    return {row.id: RunClaim(row.epoch, RunState.RUNNING, row.cancel_requested) for row in rows}


async def request_cancel(session: AsyncSession, run_pk: int) -> RunState | None:
    """Cancel a queued run at once, or ask the executor of a running run to cancel it.

    Returns:
        The state of the run after this call, or None if there is no such run:

        - CANCELLED: This call ended a queued run, or the run was cancelled earlier. The caller announces RUNS_ENDED.
        - RUNNING: The run's executor will end it. The caller announces RUNS_CANCELLED.
        - SUCCESS or FAILED: The run ended earlier.
    """
    state = (
        await session.execute(select(_RUNS.c.state).where(_RUNS.c.id == run_pk).with_for_update())
    ).scalar_one_or_none()
    if state == RunState.QUEUED:
        now = datetime.now(UTC)
        values = {"state": RunState.CANCELLED.value, "cancel_requested": True, "ended_at": now}
        await session.execute(update(_RUNS).where(_RUNS.c.id == run_pk).values(values))
        await _cancel_tasks(session, [run_pk], now)
        return RunState.CANCELLED
    if state == RunState.RUNNING:
        await session.execute(
            update(_RUNS).where(_RUNS.c.id == run_pk).values(cancel_requested=True)
        )
    return None if state is None else RunState(state)


async def cancel_queued(session: AsyncSession) -> list[str]:
    """End the queued runs that a user has asked to cancel. Return one DAG id for each ended run."""
    return await _cancel_queued(session, _RUNS.c.cancel_requested.is_(True), datetime.now(UTC))


async def cancel_queued_of_backfill(session: AsyncSession, backfill_id: int, now: datetime) -> None:
    """End the queued runs of a backfill.

    These are runs that the backfill created, and older runs that it queued again.
    """
    await _cancel_queued(session, _RUNS.c.backfill_id == backfill_id, now)


async def _cancel_queued(
    session: AsyncSession, condition: ColumnElement[bool], now: datetime
) -> list[str]:
    """End the queued runs that meet the condition. Return the DAG id of each run."""
    ended = await session.execute(
        update(_RUNS)
        .where(QUEUED, condition)
        .values(state=RunState.CANCELLED.value, cancel_requested=True, ended_at=now)
        .returning(_RUNS.c.id, _RUNS.c.dag_id)
    )
    rows = ended.all()
    if rows:
        await _cancel_tasks(session, [row.id for row in rows], now)
    return [row.dag_id for row in rows]


async def _cancel_tasks(session: AsyncSession, run_pks: Sequence[int], now: datetime) -> None:
    """Cancel the tasks of these cancelled runs that the store still shows as running.

    No task is at work, because the runs were queued. An earlier attempt left these tasks behind.
    """
    for chosen in some_of(run_pks, TaskRun.run_pk):
        await session.execute(
            update(_TASKS)
            .where(chosen, _TASKS.c.state == TaskState.RUNNING.value)
            .values(state=TaskState.CANCELLED.value, ended_at=now)
        )


async def any_dag_needs_spark(session: AsyncSession) -> bool:
    """Return whether a task of a DAG that is neither stale nor paused uses `spark`."""
    rows = await session.execute(
        select(Dag.tasks).where(Dag.is_stale.is_(False), Dag.is_paused.is_(False))
    )
    return any(map(needs_spark, rows.scalars()))
