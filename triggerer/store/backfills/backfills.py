"""Backfills: their intervals or partition keys, and the runs created for them in turn. The caller commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import func, insert, select, union_all, update
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.attempts import Repeat
from triggerer.domain.backfills import Reprocess, Step, step_for
from triggerer.domain.json_text import dump_json
from triggerer.domain.runs import ACTIVE_STATES, RunState, RunType
from triggerer.store.dags.candidates import create_run
from triggerer.store.database.script import perform
from triggerer.store.database.transactions import database_now
from triggerer.store.database.wakeups.signals import Signal, announce
from triggerer.store.listing.filters import limited, waits_for
from triggerer.store.listing.views import BackfillView
from triggerer.store.runs.repeat import LockedRun, lock_run, queue_again
from triggerer.store.schema.models import Backfill, BackfillInterval, BackfillKey, Dag, DagRun

if TYPE_CHECKING:
    from triggerer.domain.timetables import DagRunInfo

_PENDING = "pending"
_STARTED = "started"
_SKIPPED = "skipped"
_CANCELLED = "cancelled"
_AT_ONCE = 500


async def insert_backfill(
    session: AsyncSession,
    dag_id: str,
    infos: Sequence[tuple[DagRunInfo, str | None]],
    *,
    from_date: datetime,
    to_date: datetime,
    reprocess: Reprocess,
    max_active: int,
    params: Mapping[str, Any] | None = None,
) -> int:
    """Store a backfill with its intervals, all pending; return its id.

    Args:
        infos: The runs in order, each with its partition key, if it has one.
    """
    row = Backfill(
        dag_id=dag_id,
        from_date=from_date,
        to_date=to_date,
        reprocess=reprocess.value,
        max_active=max_active,
        params=_checked_params(params),
        created_at=await database_now(session),
    )
    session.add(row)
    await session.flush()
    intervals = [
        {
            "backfill_id": row.id,
            "number": number,
            "logical_date": info.logical_date,
            "data_interval_start": info.data_interval.start,
            "data_interval_end": info.data_interval.end,
            "run_after": info.run_after,
            "partition_key": key,
            "state": _PENDING,
        }
        for number, (info, key) in enumerate(infos)
    ]
    for start in range(0, len(intervals), _AT_ONCE):
        await session.execute(insert(BackfillInterval), intervals[start : start + _AT_ONCE])
    announce(session, Signal.BACKFILLS_CHANGED, dag_id)
    return row.id


def _checked_params(params: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Raises: RowRefused: A parameter has no JSON form."""
    if params is None:
        return None
    dump_json(given := dict(params), "a param of the backfill")
    return given


async def insert_key_backfill(
    session: AsyncSession,
    dag_id: str,
    keys: Sequence[str],
    *,
    reprocess: Reprocess,
    max_active: int,
    params: Mapping[str, Any] | None = None,
) -> int:
    """Store a backfill with its partition keys, all pending; return its id."""
    now = await database_now(session)
    row = Backfill(
        dag_id=dag_id,
        from_date=now,
        to_date=now,
        reprocess=reprocess.value,
        max_active=max_active,
        params=_checked_params(params),
        created_at=now,
    )
    session.add(row)
    await session.flush()
    rows = [
        {"backfill_id": row.id, "number": number, "partition_key": key, "state": _PENDING}
        for number, key in enumerate(keys)
    ]
    for start in range(0, len(rows), _AT_ONCE):
        await session.execute(insert(BackfillKey), rows[start : start + _AT_ONCE])
    announce(session, Signal.BACKFILLS_CHANGED, dag_id)
    return row.id


async def runs_of_keys(
    session: AsyncSession, dag_id: str, keys: Sequence[str]
) -> dict[str, tuple[str, RunState]]:
    """Return the newest run (id, state) of each partition key. Keys without a run are left out."""
    found: dict[str, tuple[int, str, str]] = {}
    for start in range(0, len(keys), _AT_ONCE):
        # Not ordered by id: SQLite would then read all runs of the DAG in that order.
        rows = await session.execute(
            select(DagRun.partition_key, DagRun.id, DagRun.run_id, DagRun.state)
            .where(DagRun.dag_id == dag_id)
            .where(DagRun.partition_key.in_(keys[start : start + _AT_ONCE]))
        )
        for key, pk, run_id, state in rows:
            if key is not None:
                found[key] = max(found.get(key, (0, "", "")), (pk, run_id, state))
    return {key: (run_id, RunState(state)) for key, (_, run_id, state) in found.items()}


async def existing_runs(
    session: AsyncSession, dag_id: str, start: datetime, end: datetime
) -> dict[datetime, tuple[str, RunState]]:
    """Return the newest run (id, state) of each logical date between two instants. Dates without a run are left out."""
    rows = await session.execute(
        select(DagRun.logical_date, DagRun.run_id, DagRun.state)
        .where(DagRun.dag_id == dag_id, DagRun.logical_date.between(start, end))
        .order_by(DagRun.id)
    )
    return {at: (run_id, RunState(state)) for at, run_id, state in rows if at is not None}


async def dags_with_pending(session: AsyncSession) -> dict[int, str]:
    """Return the backfills with pending intervals or keys, and their DAG ids."""
    pending = union_all(
        select(BackfillInterval.backfill_id).where(BackfillInterval.state == _PENDING),
        select(BackfillKey.backfill_id).where(BackfillKey.state == _PENDING),
    )
    rows = await session.execute(
        select(Backfill.id, Backfill.dag_id).where(Backfill.id.in_(pending)).order_by(Backfill.id)
    )
    return {row[0]: row[1] for row in rows}


async def advance(session: AsyncSession, backfill_id: int) -> int:
    """Start pending intervals or keys, up to `max_active` runs at a time; return how many runs were queued.

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
    # A scheduler that decides which intervals still need a run locks this row, or checks that it has not changed.
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


async def cancel(session: AsyncSession, backfill_id: int) -> int | None:
    """Cancel pending intervals and keys, and end queued runs; return the number of these runs.

    Running runs run to their end. None: there is no such backfill, or it was cancelled before.
    """
    backfill = await session.scalar(
        select(Backfill).where(Backfill.id == backfill_id).with_for_update()
    )
    if backfill is None or backfill.cancelled_at is not None:
        return None
    now = backfill.cancelled_at = await database_now(session)
    for kind in (BackfillInterval, BackfillKey):
        await session.execute(
            update(kind)
            .where(kind.backfill_id == backfill_id, kind.state == _PENDING)
            .values(state=_CANCELLED)
        )
    # Runs that the backfill created, and older runs that it queued again.
    ended = await session.scalars(
        update(DagRun)
        .where(DagRun.backfill_id == backfill_id, DagRun.state == RunState.QUEUED.value)
        .values(state=RunState.CANCELLED.value, cancel_requested=True, ended_at=now)
        .returning(DagRun.id)
        .execution_options(synchronize_session=False)
    )
    announce(session, Signal.RUNS_ENDED, backfill.dag_id)
    return len(ended.all())


async def list_backfills(
    session: AsyncSession,
    *,
    limit: int = 100,
    dag: str | None = None,
    asset: str | None = None,
    state: str | None = None,
    backfill_id: int | None = None,
) -> list[BackfillView]:
    """Return backfills, newest first, with their progress.

    Args:
        asset: Only backfills of DAGs that wait for this asset.
        state: A state of `BackfillView`.
    """
    query = select(Backfill).order_by(Backfill.id.desc())
    if dag is not None:
        query = query.where(Backfill.dag_id == dag)
    if asset is not None:
        query = query.where(waits_for(Backfill.dag_id, asset))
    if backfill_id is not None:
        query = query.where(Backfill.id == backfill_id)
    if state is None:
        query = limited(query, limit)
    views: list[BackfillView] = []
    for row in list(await session.scalars(query)):
        intervals = await _counts(session, BackfillInterval, row.id)
        keys = await _counts(session, BackfillKey, row.id)
        own = await _counts(session, DagRun, row.id)
        found = _state(row, intervals or keys, own)
        if state not in (None, found):
            continue
        runs = await _counts_of_begun(session, BackfillKey if keys else BackfillInterval, row.id)
        views.append(
            BackfillView(
                id=row.id,
                dag_id=row.dag_id,
                state=found,
                from_date=None if keys else row.from_date,
                to_date=None if keys else row.to_date,
                reprocess=row.reprocess,
                max_active=row.max_active,
                params=row.params,
                created_at=row.created_at,
                cancelled_at=row.cancelled_at,
                intervals=intervals,
                partition_keys=keys,
                runs=runs,
            )
        )
        if len(views) == limit:
            break
    return views


_Item = TypeVar("_Item", BackfillInterval, BackfillKey)


async def _next(session: AsyncSession, kind: type[_Item], backfill_id: int) -> _Item | None:
    found: _Item | None = await session.scalar(
        select(kind)
        .where(kind.backfill_id == backfill_id, kind.state == _PENDING)
        .order_by(kind.number)
        .limit(1)
    )
    return found


async def _begin(
    session: AsyncSession, backfill: Backfill, dag: Dag, interval: BackfillInterval
) -> bool:
    """Start an interval; return whether a run was queued for it."""
    at = interval.logical_date
    # Look again, because the scheduler or a person may have created a run since the backfill was created.
    found = (await existing_runs(session, backfill.dag_id, at, at)).get(at)
    existing = None if found is None else await lock_run(session, backfill.dag_id, found[0])
    step = step_for(None if existing is None else existing.state, Reprocess(backfill.reprocess))
    if step is Step.SKIP:
        interval.state = _SKIPPED
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
        # A run from before its DAG had keys gets the key when it is repeated.
        values["partition_key"] = interval.partition_key
    await session.execute(update(DagRun).where(DagRun.id == run_pk).values(values))
    interval.state, interval.run_pk = _STARTED, run_pk
    return True


async def _begin_key(session: AsyncSession, backfill: Backfill, dag: Dag, key: BackfillKey) -> bool:
    """Start a partition key; return whether a run was queued for it."""
    name = key.partition_key
    found = (await runs_of_keys(session, backfill.dag_id, [name])).get(name)
    existing = None if found is None else await lock_run(session, backfill.dag_id, found[0])
    step = step_for(None if existing is None else existing.state, Reprocess(backfill.reprocess))
    if step is Step.SKIP:
        key.state, key.run_pk = _SKIPPED, None if existing is None else existing.pk
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
    key.state, key.run_pk = _STARTED, run_pk
    return True


async def _repeat(session: AsyncSession, backfill: Backfill, existing: LockedRun) -> int:
    """Queue an ended run again from its beginning, with the backfill's parameters; return its primary key."""
    names = {*existing.tasks, *(task["task_id"] for task in existing.definition)}
    counts = {name: existing.repeat.cleared.get(name, 0) + 1 for name in names}
    await queue_again(session, existing.pk, Repeat({}, counts, existing.attempt))
    if backfill.params:
        run = await session.get_one(DagRun, existing.pk)
        run.params = {**run.params, **backfill.params}
    announce(session, Signal.RUNS_QUEUED, backfill.dag_id)
    return existing.pk


async def _counts(
    session: AsyncSession, kind: type[BackfillInterval | BackfillKey | DagRun], backfill_id: int
) -> dict[str, int]:
    rows = await session.execute(
        select(kind.state, func.count()).where(kind.backfill_id == backfill_id).group_by(kind.state)
    )
    return {row[0]: row[1] for row in rows}


async def _counts_of_begun(
    session: AsyncSession, kind: type[BackfillInterval | BackfillKey], backfill_id: int
) -> dict[str, int]:
    """Return the number of runs that a backfill created or repeated, by their present state.

    A later backfill may have repeated and taken over such a run. It still counts here.
    """
    rows = await session.execute(
        select(DagRun.state, func.count())
        .join(kind, kind.run_pk == DagRun.id)
        .where(kind.backfill_id == backfill_id, kind.state == _STARTED)
        .group_by(DagRun.state)
    )
    return {row[0]: row[1] for row in rows}


def _state(row: Backfill, intervals: dict[str, int], runs: dict[str, int]) -> str:
    if row.cancelled_at is not None:
        return "cancelled"
    is_active = any(runs.get(state.value) for state in ACTIVE_STATES)
    return "running" if is_active or intervals.get(_PENDING) else "done"
