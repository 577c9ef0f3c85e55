"""Finds the reason why a run does not proceed.

A queued run may wait for one of these:

- its DAG's file, which does not load,
- the end of an earlier attempt,
- a slot of a pool, a free worker or an executor.

A claimed run has the state `running`, and may wait for one of these:

- a free worker, if no worker has started the attempt,
- its executor, which has missed a heartbeat or whose process is gone,
- another executor, because the executor that had the run is gone,
- something that its attempt has reported, such as the start of Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import exists, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.runs import RunState
from triggerer.store.database.transactions import database_now
from triggerer.store.listing.filters import some_of
from triggerer.store.runs.state_conditions import QUEUED
from triggerer.store.schema.models import Dag, DagFile, DagRun, Instance, RunLaunch
from triggerer.store.schema.models.dags import NEVER
from triggerer.store.streams.liveness import GONE, Liveness, known_instances

_FORMER: Final = "the end of a former attempt"


@dataclass(frozen=True, slots=True)
class RunWait:
    """The reason why a run waits, and since when."""

    reason: str
    """The thing or event that the run waits for, such as `a worker that is free`."""
    since: datetime | None
    is_for_file: bool = False
    """True if the run waits because its DAG's file does not load."""


async def waits_of(session: AsyncSession, rows: Sequence[DagRun]) -> dict[int, RunWait]:
    """Return, by primary key, why these runs wait. Runs that have ended or that proceed are left out."""
    active = [row for row in rows if row.state in (RunState.QUEUED, RunState.RUNNING)]
    if not active:
        return {}
    queued = [row for row in active if row.state == RunState.QUEUED]
    broken = await broken_files(session, {row.dag_id for row in queued})
    worker = await awaited_worker(session) if queued else ""
    blocked = await _blocked(session, [row.id for row in queued if row.held_until is not None])
    alive = await known_instances(session)
    found = {}
    for row in active:
        wait = (
            _of_queued(row, broken, blocked, worker)
            if row.state == RunState.QUEUED
            else _of_running(row, alive.get(row.executor or "", GONE))
        )
        if wait is not None:
            found[row.id] = wait
    return found


def readable_problem(problem: Mapping[str, Any]) -> str:
    """Return `file:line: reason` of an error in `dag_file.errors`."""
    line = f":{problem['line']}" if problem.get("line") else ""
    return f"{problem['file']}{line}: {problem['reason']}"


async def broken_files(session: AsyncSession, dag_ids: Collection[str]) -> dict[str, str]:
    """Return, by DAG id, the first error of the DAG's file. DAGs whose file the DAG processor can load are left out."""
    found: dict[str, str] = {}
    query = select(Dag.dag_id, DagFile.errors).join(DagFile, DagFile.path == Dag.path)
    for chosen in some_of(sorted(dag_ids), Dag.dag_id):
        rows = await session.execute(query.where(chosen, DagFile.is_broken, ~Dag.is_stale))
        found.update({dag_id: readable_problem(errors[0]) for dag_id, errors in rows if errors})
    return found


async def unloaded_files(session: AsyncSession, dag_ids: Collection[str]) -> dict[str, str]:
    """Return, by DAG id, why an executor could not load the DAG's file.

    DAGs without a run that is held for this reason are left out.
    """
    found: dict[str, str] = {}
    query = select(DagRun.dag_id, DagRun.waiting_for).where(
        QUEUED,
        DagRun.held_until.is_not(None),
        DagRun.held_until != NEVER,
        ~exists().where(RunLaunch.run_pk == DagRun.id, RunLaunch.ended_at.is_(None)),
    )
    for chosen in some_of(sorted(dag_ids), DagRun.dag_id):
        for dag_id, reason in await session.execute(query.where(chosen)):
            found[dag_id] = reason or "for an unknown reason"
    return found


async def count_queued(session: AsyncSession, dag_id: str) -> int:
    """Return how many runs of the DAG are queued."""
    query = select(func.count()).select_from(DagRun).where(QUEUED, DagRun.dag_id == dag_id)
    return await session.scalar(query) or 0


async def blocked_runs(session: AsyncSession, dag_id: str) -> dict[str, str]:
    """For queued runs whose earlier attempt may still be at work, return what they wait for, by run id.

    Other runs are left out.
    """
    query = (
        select(DagRun.run_id, DagRun.waiting_for)
        .where(
            QUEUED,
            DagRun.dag_id == dag_id,
            DagRun.held_until.is_not(None),
            exists().where(RunLaunch.run_pk == DagRun.id, RunLaunch.ended_at.is_(None)),
        )
        .order_by(DagRun.id)
    )
    rows = await session.execute(query)
    return {run_id: waiting_for or _FORMER for run_id, waiting_for in rows}


async def awaited_worker(session: AsyncSession) -> str:
    """Return what a queued run waits for if it has no other reason to wait: an executor, or a worker that is free."""
    now = await database_now(session)
    alive = select(Instance.id).where(Instance.kind == "executor", Instance.expires_at > now)
    if await session.scalar(alive.limit(1)) is None:
        return "an executor: none is running"
    return "a worker that is free"


async def _blocked(session: AsyncSession, run_pks: Sequence[int]) -> set[int]:
    """Return the given runs that wait because an earlier attempt may still be at work."""
    found: set[int] = set()
    query = select(RunLaunch.run_pk).where(RunLaunch.ended_at.is_(None))
    for chosen in some_of(run_pks, RunLaunch.run_pk):
        found.update(await session.scalars(query.where(chosen)))
    return found


def _of_queued(
    row: DagRun, broken: Mapping[str, str], blocked: Collection[int], worker: str
) -> RunWait:
    if row.id in blocked:
        return RunWait(row.waiting_for or _FORMER, row.waiting_since)
    if row.dag_id in broken:
        since = row.waiting_since or row.queued_at
        reason = f"its file, which does not load: {broken[row.dag_id]}"
        return RunWait(reason, since, is_for_file=True)
    if row.held_until is not None and row.held_until != NEVER:
        reason = f"its file, which an executor could not load: {row.waiting_for}"
        return RunWait(reason, row.waiting_since, is_for_file=True)
    slots = f"a slot of {row.pools.replace(',', ', ')}, and " if row.pools else ""
    return RunWait(f"{slots}{worker}", row.queued_at)


def _of_running(row: DagRun, executor: Liveness) -> RunWait | None:
    if row.executor is not None and executor.is_over:
        return RunWait("another executor: its own is gone", executor.seen_at)
    if row.executor is not None and executor.is_silent:
        reason = "its executor, which has missed a heartbeat"
        return RunWait(reason, executor.seen_at)
    if row.waiting_for is not None:
        return RunWait(row.waiting_for, row.waiting_since)
    if row.started_at is None:
        return RunWait("a worker that is free", row.queued_at)
    return None
