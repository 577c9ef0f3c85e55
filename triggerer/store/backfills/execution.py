"""Creates the runs of backfills, interval by interval or key by key, and cancels backfills. The caller commits."""

from __future__ import annotations

from typing import TypeVar

from sqlalchemy import func, select, union_all, update
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.backfills import Reprocess, Step, step_for
from triggerer.domain.runs import ACTIVE_STATES, RunType
from triggerer.store.backfills.listing import existing_runs, runs_of_keys
from triggerer.store.backfills.states import CANCELLED, PENDING, SKIPPED, STARTED
from triggerer.store.database.script import perform
from triggerer.store.database.transactions import database_now
from triggerer.store.database.wakeups.signals import Signal, announce
from triggerer.store.runs.creation.create_run import create_run
from triggerer.store.runs.repeat import LockedRun, lock_run, queue_again
from triggerer.store.runs.transitions import cancel_queued_of_backfill
from triggerer.store.schema.models import Backfill, BackfillInterval, BackfillKey, Dag, DagRun


async def dags_with_pending(session: AsyncSession) -> dict[int, str]:
    """Return the DAG id of each backfill that has pending intervals or keys, by the id of the backfill."""
    pending = union_all(
        select(BackfillInterval.backfill_id).where(BackfillInterval.state == PENDING),
        select(BackfillKey.backfill_id).where(BackfillKey.state == PENDING),
    )
    rows = await session.execute(
        select(Backfill.id, Backfill.dag_id).where(Backfill.id.in_(pending)).order_by(Backfill.id)
    )
    return {row[0]: row[1] for row in rows}


async def advance(session: AsyncSession, backfill_id: int) -> int:
    """Start pending intervals or keys, until `max_active` runs are queued or running; return how many runs were queued.

    The backfill's row is locked, so two calls at the same time take turns.
    """
    backfill = await session.scalar(
        select(Backfill)
        .where(Backfill.id == backfill_id)
        .with_for_update()
        .execution_options(populate_existing=True)
    )
    if backfill is None or backfill.cancelled_at is not None:
        return 0
    # This update changes no value. It locks the DAG's row and gives the row a new version. A scheduler locks the row or
    # compares the version before it creates a run. So the scheduler and this function never both create a run for an
    # interval.
    await session.execute(
        update(Dag).where(Dag.dag_id == backfill.dag_id).values(last_run_at=Dag.last_run_at)
    )
    dag = await session.get_one(Dag, backfill.dag_id, populate_existing=True)
    if dag.is_stale:
        return 0
    active = await session.scalar(
        select(func.count())
        .select_from(DagRun)
        .where(
            DagRun.backfill_id == backfill_id,
            DagRun.state.in_([state.value for state in ACTIVE_STATES]),
        )
    )
    begun, room = 0, backfill.max_active - (active or 0)
    while begun < room:
        if (interval := await _next(session, BackfillInterval, backfill_id)) is not None:
            begun += await _begin(session, backfill, dag, interval)
        elif (key := await _next(session, BackfillKey, backfill_id)) is not None:
            begun += await _begin_key(session, backfill, dag, key)
        else:
            break
        await session.flush()
    return begun


async def lock(session: AsyncSession, backfill_id: int) -> None:
    """Lock a backfill, if there is one with this id: until the commit, no other transaction cancels or deletes it."""
    await session.execute(select(Backfill.id).where(Backfill.id == backfill_id).with_for_update())


async def cancel(session: AsyncSession, backfill_id: int) -> None:
    """Cancel the pending intervals and keys of a backfill, and end its queued runs. The caller has locked the backfill.

    Runs that are already running continue to their end.
    """
    backfill = await session.get_one(Backfill, backfill_id)
    now = backfill.cancelled_at = await database_now(session)
    for kind in (BackfillInterval, BackfillKey):
        await session.execute(
            update(kind)
            .where(kind.backfill_id == backfill_id, kind.state == PENDING)
            .values(state=CANCELLED)
        )
    await cancel_queued_of_backfill(session, backfill_id, now)
    announce(session, Signal.RUNS_ENDED, backfill.dag_id)


_Item = TypeVar("_Item", BackfillInterval, BackfillKey)


async def _next(session: AsyncSession, kind: type[_Item], backfill_id: int) -> _Item | None:
    found: _Item | None = await session.scalar(
        select(kind)
        .where(kind.backfill_id == backfill_id, kind.state == PENDING)
        .order_by(kind.number)
        .limit(1)
    )
    return found


async def _begin(
    session: AsyncSession, backfill: Backfill, dag: Dag, interval: BackfillInterval
) -> bool:
    """Start an interval; return whether a run was queued for it."""
    at = interval.logical_date
    # The scheduler or a person may have created a run for the interval since the backfill was created.
    found = (await existing_runs(session, backfill.dag_id, at, at)).get(at)
    existing = None if found is None else await lock_run(session, backfill.dag_id, found[0])
    step = step_for(None if existing is None else existing.state, Reprocess(backfill.reprocess))
    if step is Step.SKIP:
        interval.state = SKIPPED
        interval.run_pk = None if existing is None else existing.pk
        return False
    if existing is None:
        created = await perform(
            session,
            create_run(
                backfill.dag_id,
                run_type=RunType.BACKFILL,
                params={**dag.params, **(backfill.params or {})},
                run_after=interval.run_after,
            ),
        )
        run_pk = created.pk
    else:
        run_pk = await _repeat(session, backfill, existing)
    values = {
        "logical_date": at,
        "data_interval_start": interval.data_interval_start,
        "data_interval_end": interval.data_interval_end,
        "queued_at": await database_now(session),
        "backfill_id": backfill.id,
    }
    if interval.partition_key is not None:
        # If the run was created before the DAG's timetable produced partition keys, the run has no key yet.
        values["partition_key"] = interval.partition_key
    await session.execute(update(DagRun).where(DagRun.id == run_pk).values(values))
    interval.state, interval.run_pk = STARTED, run_pk
    return True


async def _begin_key(session: AsyncSession, backfill: Backfill, dag: Dag, key: BackfillKey) -> bool:
    """Start a partition key; return whether a run was queued for it."""
    name = key.partition_key
    found = (await runs_of_keys(session, backfill.dag_id, [name])).get(name)
    existing = None if found is None else await lock_run(session, backfill.dag_id, found[0])
    step = step_for(None if existing is None else existing.state, Reprocess(backfill.reprocess))
    if step is Step.SKIP:
        key.state, key.run_pk = SKIPPED, None if existing is None else existing.pk
        return False
    if existing is None:
        script = create_run(
            backfill.dag_id,
            run_type=RunType.BACKFILL,
            params={**dag.params, **(backfill.params or {})},
            partition_key=name,
        )
        run_pk = (await perform(session, script)).pk
    else:
        run_pk = await _repeat(session, backfill, existing)
    values = {"queued_at": await database_now(session), "backfill_id": backfill.id}
    await session.execute(update(DagRun).where(DagRun.id == run_pk).values(values))
    key.state, key.run_pk = STARTED, run_pk
    return True


async def _repeat(session: AsyncSession, backfill: Backfill, existing: LockedRun) -> int:
    """Queue an ended run again from its beginning, with the backfill's parameters; return its primary key."""
    defined = (task["task_id"] for task in existing.definition)
    names = {*existing.tasks, *existing.repeat.cleared, *defined}
    counts = {name: existing.repeat.cleared.get(name, 0) + 1 for name in names}
    await queue_again(session, existing, kept={}, cleared=counts)
    if backfill.params:
        run = await session.get_one(DagRun, existing.pk)
        run.params = {**run.params, **backfill.params}
    announce(session, Signal.RUNS_QUEUED, backfill.dag_id)
    return existing.pk
