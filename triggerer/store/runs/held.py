"""Holds queued runs that cannot be executed now, and releases them.

A held run stays queued and counts for `max_active_runs`, but no executor claims it. There are three reasons:

- The DAG processor cannot load the DAG's file (`dag_file.is_broken`). The run is held until the file loads, or the DAG
  is stale.
- A worker cannot load the file, although the DAG processor can. For instance, the worker's machine lacks a package. The
  run is held for 5 to 60 seconds, or until the DAG processor has read the file again.
- An earlier attempt may still be at work, see `triggerer.store.runs.attempts.steps`. The run is held for 5 to 60
  seconds.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import orjson
from sqlalchemy import ColumnElement, Select, Table, and_, exists, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.attempts import RunOrder
from triggerer.store.database.script import Script
from triggerer.store.database.statement import Statement
from triggerer.store.database.two_statements import TwoStatements
from triggerer.store.runs.state_conditions import QUEUED
from triggerer.store.schema.models import Dag, DagFile, DagRun, RunLaunch
from triggerer.store.schema.models.dags import NEVER

_RUNS: Final = typing.cast(Table, DagRun.__table__)
_FIRST_DELAY_S: Final = 5.0
_LONGEST_DELAY_S: Final = 60.0
_OTHERS_FIRST: Final = timedelta(seconds=12)
"""How long an executor waits before it releases a held run whose file it could not load itself.

Executors sweep at shorter intervals. So another executor, whose machine may be able to load the file, can release and
claim the run first.
"""

# `_BROKEN` finds the runs to hold among the next claimable runs. On PostgreSQL the query locks the file's row. When a
# file is repaired, the DAG processor writes this row before it releases the file's runs. So either this query sees the
# repaired file, or the DAG processor waits for this transaction and then also releases the runs held here.
_BROKEN: Final = """
SELECT r.id FROM (
    SELECT id, dag_id FROM dag_run {HINT}
    WHERE state = 'queued' AND held_until IS NULL AND NOT cancel_requested
    ORDER BY priority DESC, id LIMIT {limit}
) r JOIN dag d ON d.dag_id = r.dag_id JOIN dag_file f ON f.path = d.path
WHERE f.is_broken AND NOT d.is_stale"""
_HOLD: Final = Statement(
    """
{BROKEN}
UPDATE dag_run SET held_until = {never}, waiting_for = NULL, waiting_since = {now}
WHERE id {IN_BROKEN} AND state = 'queued' AND held_until IS NULL
RETURNING id
""",
    BROKEN=(
        "",
        f"WITH broken AS MATERIALIZED ({_BROKEN.replace('{HINT}', '')} FOR SHARE OF f)",
    ),
    IN_BROKEN=(
        f"IN ({_BROKEN.replace('{HINT}', 'INDEXED BY ix_dag_run_claimable')})",
        "= ANY(ARRAY(SELECT id FROM broken ORDER BY id))",
    ),
)
_HOLD_ATTEMPT_TEXT: Final = """
UPDATE dag_run SET state = 'queued', held_until = {until}, waiting_for = {reason}, waiting_since = {now},
    first_started_at = CASE WHEN first_started_at <> started_at THEN first_started_at END,
    started_at = NULL, again = {AGAIN}
WHERE id = {run_pk} AND executor = {executor} AND epoch = {epoch} AND state = 'running'
  AND NOT cancel_requested
  AND NOT (SELECT d.is_stale FROM dag d WHERE d.dag_id = dag_run.dag_id)
RETURNING id
"""
_AGAIN: Final = ("{again}", "{again}::text::json")
_FORGET_TEXT: Final = "DELETE FROM run_attempt WHERE run_pk = {run_pk} AND epoch = {epoch}"
_HOLD_ATTEMPT: Final = Statement(_HOLD_ATTEMPT_TEXT, AGAIN=_AGAIN)
_FORGET: Final = Statement(_FORGET_TEXT)
_HOLD_AND_FORGET: Final = Statement(
    f"WITH held AS ({_HOLD_ATTEMPT_TEXT}), forgotten AS ({_FORGET_TEXT} AND run_pk IN (SELECT id FROM held))"
    " SELECT id FROM held",
    AGAIN=_AGAIN,
)


def hold_broken(*, limit: int) -> Script[None]:
    """Hold runs, until none of the first `limit` claimable runs has a broken DAG file."""
    while (yield _HOLD(limit=limit, never=NEVER, now=datetime.now(UTC))):
        pass


def hold_attempt(*, executor: str, order: RunOrder, reason: str) -> TwoStatements:
    """A step: queue a run again, because a worker could not load the DAG's file, and hold the run for 5 to 60 seconds.

    The attempt does not count towards `MAX_ATTEMPTS`, and its row in `run_attempt` is deleted. The step returns one
    row. It changes nothing and returns no row if:

    - another attempt has the run,
    - the run must be cancelled, or
    - the DAG is stale.
    """
    # The attempt must not count towards `MAX_ATTEMPTS`, so `after_attempt` excludes the attempts so far from the count.
    # The run's attempt number is not reduced, because the delay grows with this number.
    repeat = dataclasses.replace(order.repeat, after_attempt=order.attempt)
    now = datetime.now(UTC)
    delay_s = min(_FIRST_DELAY_S * 2.0 ** min(order.attempt - 1, 10), _LONGEST_DELAY_S)
    values = {
        "executor": executor,
        "run_pk": order.run_pk,
        "epoch": order.epoch,
        "reason": reason.removeprefix(f"{order.path} could not be loaded: "),
        "until": now + timedelta(seconds=delay_s),
        "now": now,
        "again": orjson.dumps(repeat.to_json()).decode(),
    }
    return TwoStatements(_HOLD_ATTEMPT, _FORGET, _HOLD_AND_FORGET, values)


async def any_file_is_broken(session: AsyncSession) -> bool:
    """Return True if some DAG file does not load, so that runs must be held."""
    return await session.scalar(select(DagFile.path).where(DagFile.is_broken).limit(1)) is not None


async def release_runs(session: AsyncSession, reread: Collection[str]) -> list[str]:
    """Release the held runs whose file loads now, or whose DAG is stale. Return the ids of their DAGs.

    The caller has already stored the files' present definitions in this transaction.

    Args:
        reread: The files that were read since the last call. If such a file loads, runs of its DAGs that are held for
            some seconds are released too.
    """
    rows = (await session.execute(_select_held_runs())).all()
    loads = [
        row
        for row in rows
        if row.is_stale or (not row.is_broken and (row.held_until == NEVER or row.path in reread))
    ]
    return await _release(session, loads)


async def release_due(
    session: AsyncSession, *, holds_broken: bool, executor: str, is_alone: bool
) -> list[str]:
    """Release the held runs whose next try is due. Return the ids of their DAGs.

    Also release the runs that are held until their file loads (`NEVER`), if the file loads now or
    the DAG is stale.

    Args:
        holds_broken: True if the configuration says `broken_file = "hold"`. False: all runs that wait for their file
            are released, to fail if the file does not load.
        executor: The executor that calls this function. If it could not load a run's file itself, it releases the run
            later than other executors do, see `_OTHERS_FIRST`.
        is_alone: True if there is no other executor.
    """
    now = datetime.now(UTC)
    due: ColumnElement[bool] = _RUNS.c.held_until <= now
    is_blocked = exists().where(RunLaunch.run_pk == _RUNS.c.id, RunLaunch.ended_at.is_(None))
    if not is_alone:
        is_ours = _RUNS.c.executor == executor
        may_try = or_(~is_ours, is_blocked, _RUNS.c.held_until <= now - _OTHERS_FIRST)
        due = and_(due, may_try)
    is_repaired = and_(
        _RUNS.c.held_until == NEVER, or_(DagFile.is_broken.is_not(True), Dag.is_stale)
    )
    query = _select_held_runs()
    query = query.where(or_(due, is_repaired) if holds_broken else or_(due, ~is_blocked))
    return await _release(session, (await session.execute(query)).all())


def _select_held_runs() -> Select[int, str, datetime | None, str, bool, bool]:
    return (
        select(
            DagRun.id, DagRun.dag_id, DagRun.held_until, Dag.path, Dag.is_stale, DagFile.is_broken
        )
        .join(Dag, Dag.dag_id == DagRun.dag_id)
        .outerjoin(DagFile, DagFile.path == Dag.path)
        .where(QUEUED, DagRun.held_until.is_not(None))
        .order_by(DagRun.id)
    )


async def _release(session: AsyncSession, rows: Sequence[Any]) -> list[str]:
    for start in range(0, len(rows), 500):  # below every database's bound on parameters
        pks = [row[0] for row in rows[start : start + 500]]
        await session.execute(
            update(_RUNS)
            .where(_RUNS.c.id.in_(pks), QUEUED)
            .values(held_until=None, waiting_for=None, waiting_since=None)
        )
    return sorted({row[1] for row in rows})
