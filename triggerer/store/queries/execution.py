"""Runs and tasks as the executor moves them; committing is left to the caller.

A result is taken only from the (executor, attempt) that the row still shows: an executor that was
given up on, and whose runs somebody else has queued again, can write nothing.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import (
    Table,
    select,
    text,
    update,
)
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.runs import RunState, TaskState
from triggerer.store.models import Dag, DagRun, TaskRun
from triggerer.store.queries.results import HeldRun
from triggerer.store.script import Row
from triggerer.store.statement import Ask, Statement, instant_from, json_from

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


def claim_runs(*, executor: str, limit: int, log_home: str) -> Ask:
    """A step: move up to `limit` queued runs to running, oldest first, for this executor alone.

    Each claim is a new attempt; `begin_run` says which ones have to be begun besides. Runs that other executors
    are claiming right now are passed over, not waited for. `claimed_runs` reads the rows.
    """
    now = datetime.now(UTC)
    return _CLAIM(executor=executor, limit=limit, log_home=log_home, now=now)


def begin_run(*, executor: str, run_pk: int, attempt: int) -> Ask:
    """A step: note that a worker begins an attempt of ours now; one row if it is ours still, none otherwise.

    For every attempt but the first. That one is taken for begun when it is claimed: nearly all runs need no other,
    and a transaction more would cost each of them. `recover_orphans` counts those that were begun.
    """
    now = datetime.now(UTC)
    return _BEGIN(executor=executor, run_pk=run_pk, attempt=attempt, now=now)


def note_wait(
    *,
    executor: str,
    run_pk: int,
    attempt: int,
    waiting_for: str | None,
    waiting_since: datetime | None,
) -> Ask:
    """A step: note what an attempt of ours waits for; None: for nothing. Of no effect once it has ended."""
    return _WAIT(
        executor=executor,
        run_pk=run_pk,
        attempt=attempt,
        waiting_for=waiting_for,
        waiting_since=waiting_since,
    )


def claimed_runs(rows: Sequence[Row]) -> list[ClaimedRun]:
    """What the step `claim_runs` made ours, oldest first."""
    claimed = [
        ClaimedRun(
            pk=pk,
            dag_id=dag_id,
            run_id=run_id,
            run_type=run_type,
            attempt=attempt,
            path=path,
            needs_spark=any(task.get("needs_spark") for task in json_from(tasks)),
            queued_at=_present(queued_at),
            run_after=_present(run_after),
            logical_date=instant_from(logical_date),
            data_interval_start=instant_from(start),
            data_interval_end=instant_from(end),
            params=json_from(params),
        )
        for (
            pk,
            dag_id,
            run_id,
            run_type,
            attempt,
            queued_at,
            run_after,
            logical_date,
            start,
            end,
            params,
            path,
            tasks,
        ) in rows
    ]
    return sorted(claimed, key=lambda run: run.pk)


def _present(value: str | datetime) -> datetime:
    instant = instant_from(value)
    assert instant is not None
    return instant


# The state is written out twice: only so can the planner see that the partial index covers it. SQLite has to be told
# all the same: not knowing the limit, it would rather go through all the runs that ever were, in order. On PostgreSQL
# it is an array, so that the runs are picked once, whatever the planner makes of the rest.
_PICKED: Final = """
SELECT r.id FROM dag_run r {HINT}
WHERE r.state IN ('queued', 'running') AND r.state = 'queued' AND NOT r.cancel_requested
ORDER BY r.id
LIMIT {limit} {LOCK}"""
_CLAIM: Final = Statement(
    """
UPDATE dag_run SET state = 'running', executor = {executor}, attempt = attempt + 1,
       started_at = CASE WHEN attempt = 0 THEN {NOW} END, log_home = {log_home}, error = NULL,
       exit_code = NULL, waiting_for = NULL, waiting_since = NULL
WHERE id {PICKED}
RETURNING id, dag_id, run_id, run_type, attempt, queued_at, run_after, logical_date,
          data_interval_start, data_interval_end, params,
          (SELECT d.path FROM dag d WHERE d.dag_id = dag_run.dag_id),
          (SELECT d.tasks FROM dag d WHERE d.dag_id = dag_run.dag_id)
""",
    PICKED=(f"IN ({_PICKED})", f"= ANY(ARRAY({_PICKED}))"),
    HINT=("INDEXED BY ix_dag_run_active", ""),
    LOCK=("", "FOR UPDATE OF r SKIP LOCKED"),
    NOW=("{now}", "{now}::timestamptz"),
)
_BEGIN: Final = Statement(
    """
UPDATE dag_run SET started_at = {now}
WHERE id = {run_pk} AND executor = {executor} AND attempt = {attempt} AND state = 'running'
RETURNING id
"""
)

_WAIT: Final = Statement(
    """
UPDATE dag_run SET waiting_for = {waiting_for}, waiting_since = {waiting_since}
WHERE id = {run_pk} AND executor = {executor} AND attempt = {attempt} AND state = 'running'
"""
)


async def requeue_runs(session: AsyncSession, *, executor: str, attempts: Mapping[int, int]) -> int:
    """Put runs of ours back into the queue; how many were still ours.

    The attempt that is given up does not count, however far it had come: attempts are counted to find a run that
    kills its executors, and an executor that hands runs back is alive.

    Args:
        attempts: By primary key, the attempt that is given up.
    """
    requeued = 0
    for pk, attempt in attempts.items():
        values: dict[str, Any] = {
            "state": RunState.QUEUED.value,
            "started_at": None,
            "attempt": attempt - 1,
        }
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
    """End the queued runs that are to be cancelled; their DAG ids."""
    now = datetime.now(UTC)
    ended = await session.execute(
        update(_RUNS)
        .where(_QUEUED, _RUNS.c.cancel_requested.is_(True))
        .values(state=RunState.CANCELLED.value, ended_at=now)
        .returning(_RUNS.c.id, _RUNS.c.dag_id)
    )
    rows = ended.all()
    if rows:
        await _cancel_tasks(session, [row.id for row in rows], now)
    return [row.dag_id for row in rows]


async def _cancel_tasks(session: AsyncSession, run_pks: Sequence[int], now: datetime) -> None:
    """End the tasks that an attempt has left as running: its executor died, or handed the run back."""
    await session.execute(
        update(_TASKS)
        .where(_TASKS.c.run_pk.in_(run_pks), _TASKS.c.state == TaskState.RUNNING.value)
        .values(state=TaskState.CANCELLED.value, ended_at=now)
    )


async def any_dag_needs_spark(session: AsyncSession) -> bool:
    """Whether a DAG that may run has a task that names `spark`."""
    rows = await session.execute(
        select(Dag.tasks).where(Dag.is_stale.is_(False), Dag.is_paused.is_(False))
    )
    return any(task.get("needs_spark") for tasks in rows.scalars() for task in tasks)
