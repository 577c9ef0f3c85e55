"""Backfills of a DAG's timetable for a range of time, with a limit on the runs that are active at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.actors import Actor
from triggerer.domain.backfills import Reprocess, Step, runs_between, step_for
from triggerer.domain.instants import readable
from triggerer.domain.schedules import partition_key_of, schedule_from_json, timetable_in
from triggerer.domain.timetables import DagRunInfo
from triggerer.errors import DagError, MoveRefused, UnknownDag
from triggerer.operations.audit import Action, record
from triggerer.store.backfills import creation, execution, listing
from triggerer.store.dags.listing import list_dags
from triggerer.store.database.transactions import database_now
from triggerer.store.listing.views import BackfillView


@dataclass(frozen=True, slots=True)
class PlannedInterval:
    """The step that a backfill would take for an interval."""

    logical_date: datetime
    data_interval_start: datetime
    data_interval_end: datetime
    run_after: datetime
    step: Step
    run_id: str | None
    """The interval's existing run. None: there is no run."""
    run_state: str | None
    partition_key: str | None = None
    """The run's key. None: the timetable produces no keys."""


async def plan_backfill(
    session: AsyncSession,
    dag_id: str,
    from_date: datetime,
    to_date: datetime,
    *,
    reprocess: Reprocess = Reprocess.NONE,
) -> list[PlannedInterval]:
    """Return the intervals of a backfill, oldest first, and whether it would run, repeat or skip each. Change nothing.

    Args:
        from_date, to_date: The range of logical dates, both inclusive.
    Raises:
        UnknownDag: There is no such DAG.
        DagError: The DAG is gone from its file or has no timetable, or the range is empty or too large.
        PluginError: The DAG's timetable is not installed here.
    """
    infos = await _runs(session, dag_id, from_date, to_date)
    existing = await listing.existing_runs(session, dag_id, from_date, to_date)
    planned = []
    for info, key in infos:
        run_id, state = existing.get(info.logical_date, (None, None))
        planned.append(
            PlannedInterval(
                info.logical_date,
                info.data_interval.start,
                info.data_interval.end,
                info.run_after,
                step_for(state, reprocess),
                run_id,
                None if state is None else state.value,
                key,
            )
        )
    return planned


async def start_backfill(
    session: AsyncSession,
    actor: Actor,
    dag_id: str,
    from_date: datetime,
    to_date: datetime,
    *,
    reprocess: Reprocess = Reprocess.NONE,
    max_active: int = 10,
    params: Mapping[str, Any] | None = None,
) -> BackfillView:
    """Start a backfill: queue its first `max_active` runs. Each time one of them ends, a scheduler queues the next.

    The runs are executed even if the DAG is paused.

    Args:
        max_active: At most this number of the backfill's runs are queued or running at once.
        params: Values that replace the DAG's parameters of the same names. They also apply if a run is repeated.
    Raises:
        MoveRefused: The DAG has an unfinished backfill.
        DagError: `max_active` is below 1, or no run is due in the range.
        Errors of `plan_backfill`.
    """
    if max_active < 1:
        raise DagError(f"max_active must be at least 1, not {max_active}")
    infos = await _runs(session, dag_id, from_date, to_date)
    if not infos:
        raise DagError(
            f"the DAG {dag_id!r} has no run that is due between {readable(from_date)} and {readable(to_date)}"
        )
    await refuse_second(session, dag_id)
    backfill_id = await creation.insert_backfill(
        session,
        dag_id,
        infos,
        from_date=from_date,
        to_date=to_date,
        reprocess=reprocess,
        max_active=max_active,
        params=params,
    )
    await execution.advance(session, backfill_id)
    return await record_start(session, actor, backfill_id)


async def list_backfills(
    session: AsyncSession,
    *,
    limit: int = 100,
    dag: str | None = None,
    asset: str | None = None,
    state: str | None = None,
) -> list[BackfillView]:
    """Return backfills, newest first.

    Args:
        asset: The name or URI of an asset. The result has only backfills of DAGs that wait for this asset.
        state: `running`, `done` or `cancelled`.
    """
    return await listing.list_backfills(session, limit=limit, dag=dag, asset=asset, state=state)


async def cancel_backfill(session: AsyncSession, actor: Actor, backfill_id: int) -> BackfillView:
    """Cancel a backfill's pending intervals and queued runs. Runs that have started continue.

    Raises:
        MoveRefused: There is no such backfill, or it has ended.
    """
    await execution.lock(session, backfill_id)
    found = await listing.list_backfills(session, backfill_id=backfill_id)
    if not found:
        raise MoveRefused(
            f"there is no backfill {backfill_id}", hint="triggerer dags backfill --list"
        )
    if found[0].state != "running":
        raise MoveRefused(f"the backfill {backfill_id} has ended: {found[0].state}")
    await execution.cancel(session, backfill_id)
    cancelled = await find_backfill(session, backfill_id)
    await record(
        session,
        actor,
        Action.BACKFILL_CANCEL,
        f"{cancelled.dag_id} {backfill_id}",
        before={"state": found[0].state},
        after={"state": cancelled.state},
    )
    return cancelled


async def record_start(session: AsyncSession, actor: Actor, backfill_id: int) -> BackfillView:
    """Record the start of a backfill in the audit, and return the backfill."""
    begun = await find_backfill(session, backfill_id)
    await record(
        session,
        actor,
        Action.BACKFILL_START,
        f"{begun.dag_id} {backfill_id}",
        after={
            "from": None if begun.from_date is None else begun.from_date.isoformat(),
            "to": None if begun.to_date is None else begun.to_date.isoformat(),
            "reprocess": begun.reprocess,
            "max_active": begun.max_active,
            "params": begun.params,
            "intervals": sum(begun.intervals.values()),
            "partition_keys": sum(begun.partition_keys.values()),
        },
    )
    return begun


async def refuse_second(session: AsyncSession, dag_id: str) -> None:
    """Check that the DAG has no unfinished backfill. Until the commit, no other transaction can pass this check.

    Raises:
        MoveRefused: The DAG has an unfinished backfill.
    """
    await creation.lock_dag(session, dag_id)
    other = await listing.unfinished_backfill(session, dag_id)
    if other is not None:
        raise MoveRefused(
            f"the DAG {dag_id!r} has a backfill that has not ended: {other}",
            hint=f"triggerer dags backfill --cancel {other}",
        )


async def find_backfill(session: AsyncSession, backfill_id: int) -> BackfillView:
    """Return the backfill with this id, which must exist."""
    (found,) = await listing.list_backfills(session, backfill_id=backfill_id)
    return found


async def _runs(
    session: AsyncSession, dag_id: str, from_date: datetime, to_date: datetime
) -> Sequence[tuple[DagRunInfo, str | None]]:
    """Return the runs that the timetable has between two dates, each with its partition key or None."""
    found = await list_dags(session, dag=dag_id, limit=1)
    if not found:
        raise UnknownDag(dag_id)
    (dag,) = found
    if dag.is_stale:
        raise DagError(f"the DAG {dag_id!r} is gone from its file {dag.path}")
    schedule = schedule_from_json(dag.schedule)
    timetable = timetable_in(schedule)
    if timetable is None:
        raise DagError(
            f"the DAG {dag_id!r} has no timetable: nothing says which runs it should have"
        )
    if from_date > to_date:
        raise DagError(f"the range is empty: {readable(from_date)} is after {readable(to_date)}")
    infos = runs_between(timetable, from_date, to_date, now=await database_now(session))
    return [(info, partition_key_of(schedule, info.data_interval)) for info in infos]
