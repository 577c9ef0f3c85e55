"""The transitions of runs and tasks that executors make; the caller commits.

A result is accepted only from the (executor, attempt) that the run's row shows. So an executor that was taken for dead,
and whose runs were queued again, can write nothing.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import Table, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.attempts import Repeat, RunOrder
from triggerer.domain.run_logs import log_path
from triggerer.domain.runs import RunState, TaskState
from triggerer.store.database.script import Row
from triggerer.store.database.statement import BoundStatement, Statement, instant_from, json_from
from triggerer.store.runs.results import RunClaim
from triggerer.store.runs.state_conditions import QUEUED, RUNNING
from triggerer.store.schema.models import Dag, DagRun, TaskRun

_RUNS: Final = typing.cast(Table, DagRun.__table__)
_TASKS: Final = typing.cast(Table, TaskRun.__table__)


def claim_runs(*, executor: str, limit: int, log_home: str) -> BoundStatement:
    """A step: move up to `limit` queued runs to running for this executor alone. `claimed_runs` reads the rows.

    Runs with a higher priority come first, then older runs. Runs with pools are left to
    `triggerer.store.runs.pooled_claims`. Each claim is a new attempt; see also `begin_run`. Runs that other executors
    claim at this moment are skipped.
    """
    now = datetime.now(UTC)
    return _CLAIM(executor=executor, limit=limit, log_home=log_home, now=now)


def begin_run(*, executor: str, run_pk: int, attempt: int) -> BoundStatement:
    """A step: store that a worker begins an attempt now. It returns one row if this executor still has the run.

    It serves every attempt but the first, whose claim counts as its begin. Nearly all runs need one attempt, and this
    saves them a transaction. `recover_orphans` counts attempts that began.
    """
    now = datetime.now(UTC)
    return _BEGIN(executor=executor, run_pk=run_pk, attempt=attempt, now=now)


def record_wait(
    *,
    executor: str,
    run_pk: int,
    attempt: int,
    waiting_for: str | None,
    waiting_since: datetime | None,
) -> BoundStatement:
    """A step: store the reason why an attempt of this executor waits, or None. No effect once the attempt has ended."""
    return _WAIT(
        executor=executor,
        run_pk=run_pk,
        attempt=attempt,
        waiting_for=waiting_for,
        waiting_since=waiting_since,
    )


def claimed_runs(rows: Sequence[Row], *, log_home: str) -> list[RunOrder]:
    """Return the runs that the step `claim_runs` claimed, in the order of execution."""
    ordered = sorted(rows, key=lambda row: (-row[-1], row[0]))
    return [_order(row[:-1], log_home) for row in ordered]


def claim_these(*, executor: str, run_pks: Sequence[int], log_home: str) -> BoundStatement:
    """A step: claim these runs, if they are still queued, in the way of `claim_runs`."""
    now = datetime.now(UTC)
    return _CLAIM_THESE(executor=executor, run_pks=list(run_pks), log_home=log_home, now=now)


def _order(row: Row, log_home: str) -> RunOrder:
    run_pk, dag_id, run_id, run_type, attempt, queued_at, run_after, *others = row
    logical_date, start, end, params, partition_key, again, path, tasks, callbacks = others
    return RunOrder(
        dag_id=dag_id,
        run_id=run_id,
        run_type=run_type,
        attempt=attempt,
        queued_at=_present(queued_at),
        run_after=_present(run_after),
        logical_date=instant_from(logical_date),
        data_interval_start=instant_from(start),
        data_interval_end=instant_from(end),
        params=json_from(params),
        partition_key=partition_key,
        run_pk=run_pk,
        path=path,
        needs_spark=_needs_spark(json_from(tasks)),
        log_path=log_path(log_home, dag_id, run_id),
        repeat=Repeat.from_json(json_from(again)),
        callbacks=callbacks,
    )


def _needs_spark(tasks: Sequence[Mapping[str, Any]]) -> bool:
    return any(task.get("needs_spark") for task in tasks)


def _present(value: str | datetime) -> datetime:
    instant = instant_from(value)
    assert instant is not None
    return instant


# SQLite needs the name of the index: it does not know the limit, and would walk all runs that ever existed. On
# PostgreSQL the ids are an array, so that the planner picks the runs only once.
_CLAIMABLE: Final = "state = 'queued' AND held_until IS NULL AND NOT cancel_requested"
_PICKED: Final = f"""
SELECT r.id FROM dag_run r {{HINT}} WHERE {_CLAIMABLE} AND r.pools IS NULL
ORDER BY r.priority DESC, r.id
LIMIT {{limit}} {{LOCK}}"""
_CLAIMED: Final = """
UPDATE dag_run SET state = 'running', executor = {executor}, attempt = attempt + 1,
       started_at = CASE WHEN attempt = 0 THEN {NOW} END,
       first_started_at = COALESCE(first_started_at, CASE WHEN attempt = 0 THEN {NOW} END),
       log_home = {log_home}, error = NULL, exit_code = NULL, waiting_for = NULL, waiting_since = NULL
WHERE {PICKED}
RETURNING id, dag_id, run_id, run_type, attempt, queued_at, run_after, logical_date,
          data_interval_start, data_interval_end, params, partition_key, again,
          (SELECT d.path FROM dag d WHERE d.dag_id = dag_run.dag_id),
          (SELECT d.tasks FROM dag d WHERE d.dag_id = dag_run.dag_id),
          (SELECT d.callbacks FROM dag d WHERE d.dag_id = dag_run.dag_id), priority
"""
_NOW: Final = ("{now}", "{now}::timestamptz")
_CLAIM: Final = Statement(
    _CLAIMED,
    PICKED=(f"id IN ({_PICKED})", f"id = ANY(ARRAY({_PICKED}))"),
    HINT=("INDEXED BY ix_dag_run_claimable", ""),
    LOCK=("", "FOR UPDATE OF r SKIP LOCKED"),
    NOW=_NOW,
)
_CLAIM_THESE: Final = Statement(
    _CLAIMED,
    PICKED=(
        f"id IN (SELECT value FROM json_each({{run_pks}})) AND {_CLAIMABLE}",
        f"id = ANY({{run_pks}}::bigint[]) AND {_CLAIMABLE}",
    ),
    NOW=_NOW,
)
_BEGIN: Final = Statement(
    """
UPDATE dag_run SET started_at = {now}, first_started_at = COALESCE(first_started_at, {now})
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


async def requeue_runs(
    session: AsyncSession, *, executor: str, attempts: Mapping[int, int], have_begun: bool = True
) -> int:
    """Queue runs of this executor again; return how many it still had.

    The attempt does not count, however far it had come. Attempts are counted to find a run that kills its executors,
    and an executor that queues a run again is alive.

    Args:
        attempts: The attempt of each run, by primary key.
        have_begun: False if no worker has begun any of these attempts.
    """
    requeued = 0
    for pk, attempt in attempts.items():
        values: dict[str, Any] = {
            "state": RunState.QUEUED.value,
            "started_at": None,
            "attempt": attempt - 1,
        }
        if not have_begun and attempt == 1:
            # The claim has set it.
            values["first_started_at"] = None
        result = await session.execute(
            update(_RUNS)
            .where(
                _RUNS.c.id == pk, _RUNS.c.executor == executor, _RUNS.c.attempt == attempt, RUNNING
            )
            .values(values)
            .returning(_RUNS.c.id)
        )
        requeued += len(result.all())
    return requeued


async def running_of(session: AsyncSession, *, executor: str) -> dict[int, RunClaim]:
    """Return the runs that the store shows as running on this executor."""
    rows = await session.execute(
        select(_RUNS.c.id, _RUNS.c.attempt, _RUNS.c.cancel_requested).where(
            RUNNING, _RUNS.c.executor == executor
        )
    )
    return {row.id: RunClaim(row.attempt, RunState.RUNNING, row.cancel_requested) for row in rows}


async def request_cancel(session: AsyncSession, run_pk: int) -> RunState | None:
    """Cancel a queued run at once, or ask the executor of a running run to cancel it.

    Returns:
        The run's state now. CANCELLED: it was queued. RUNNING: its executor will end it. SUCCESS or FAILED: it had
        ended before. None: there is no such run. The caller announces RUNS_ENDED or RUNS_CANCELLED accordingly.
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
    """End the queued runs with a request to cancel; return their DAG ids."""
    now = datetime.now(UTC)
    ended = await session.execute(
        update(_RUNS)
        .where(QUEUED, _RUNS.c.cancel_requested.is_(True))
        .values(state=RunState.CANCELLED.value, ended_at=now)
        .returning(_RUNS.c.id, _RUNS.c.dag_id)
    )
    rows = ended.all()
    if rows:
        await _cancel_tasks(session, [row.id for row in rows], now)
    return [row.dag_id for row in rows]


async def _cancel_tasks(session: AsyncSession, run_pks: Sequence[int], now: datetime) -> None:
    """End tasks that an earlier attempt left as running when its executor died or queued the run again."""
    await session.execute(
        update(_TASKS)
        .where(_TASKS.c.run_pk.in_(run_pks), _TASKS.c.state == TaskState.RUNNING.value)
        .values(state=TaskState.CANCELLED.value, ended_at=now)
    )


async def any_dag_needs_spark(session: AsyncSession) -> bool:
    """Return True if a task of an active DAG names `spark`."""
    rows = await session.execute(
        select(Dag.tasks).where(Dag.is_stale.is_(False), Dag.is_paused.is_(False))
    )
    return any(map(_needs_spark, rows.scalars()))
