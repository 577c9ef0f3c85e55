"""Creates a run, for a script or on a user's request."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.runs import RunType
from triggerer.domain.schedules import (
    partition_key_of,
    run_of_key,
    schedule_from_json,
    timetable_in,
)
from triggerer.domain.text.storable import check_partition_key
from triggerer.errors import DagError, RowRefused, UnknownDag
from triggerer.store.database.script import Announcement, Script, database_instant, perform
from triggerer.store.database.transactions import database_now
from triggerer.store.database.wakeups.signals import Signal
from triggerer.store.runs.creation.create_run_step import CreatedRun, CreateRun, EventSelection
from triggerer.store.schema.models import Dag

_TICK: Final = timedelta(microseconds=1)
_MAX_RUN_ID: Final = 250
_STEPS_OF_A_PATH: Final = frozenset({".", ".."})
"""HTTP clients resolve these steps of a path, so no URL could name a run with such an id."""
# Beginnings of run ids that only the scheduler may use. The scheduler assumes that it created each run with such an id.
_RESERVED: Final = tuple(f"{kind}__" for kind in RunType if kind is not RunType.MANUAL)


def create_run(
    dag_id: str,
    *,
    run_type: RunType,
    params: Mapping[str, Any],
    run_after: datetime | None = None,
    run_id: str | None = None,
    selection: EventSelection | None = None,
    logical_date: datetime | None = None,
    interval: tuple[datetime, datetime] | None = None,
    partition_key: str | None = None,
) -> Script[CreatedRun]:
    """Insert a queued run with the events that it takes, and announce it.

    Args:
        run_after: The instant of the run. None: the present instant. If `run_id` is None and a run with the resulting
            id exists, the instant moves to the next free microsecond. A run that takes events gets the present instant
            if `run_after` is earlier, so that no event is later than the run.
        run_id: The id of the run. None: the id is `<type>__<run_after>`.
        selection: Which of the DAG's queued events the run takes. None: no events.
        logical_date: The logical date of the run. None: the run has none.
        interval: The data interval of the run. None: the run has none.
    Raises:
        RowRefused: The DAG has a run with this id.
    """
    step = CreateRun(
        dag_id,
        run_type,
        params,
        run_after,
        run_id,
        selection,
        logical_date=logical_date,
        interval=interval,
        partition_key=partition_key,
    )
    while not (rows := (yield step)):
        if run_id is not None:
            raise RowRefused(
                f"the DAG {dag_id!r} already has a run {run_id!r}", hint="choose another run id"
            )
        after = step.run_after or (yield from database_instant())
        step = dataclasses.replace(step, run_after=after + _TICK)
    ((pk, made_id, made_after),) = rows
    yield Announcement(Signal.RUNS_QUEUED, (dag_id,))
    return CreatedRun(pk, dag_id, made_id, made_after.astimezone(UTC))


async def create_manual_run(
    session: AsyncSession,
    dag_id: str,
    *,
    run_id: str | None = None,
    params: Mapping[str, Any] | None = None,
    partition_key: str | None = None,
) -> CreatedRun:
    """Queue a run on a user's request, even if the DAG is paused or has `max_active_runs` runs.

    Args:
        params: Parameters that replace the DAG's parameters of the same names.
        partition_key: The run's partition key. If the DAG's timetable produces keys, the run covers the key's data
            interval. None: if the timetable produces keys, the run gets the key of its data interval.
    Raises:
        UnknownDag: There is no such DAG.
        DagError: The DAG is gone from its file, or its timetable never produces this key.
        RowRefused: The DAG has a run with this id, or the id or the key is not valid.
    """
    if partition_key is not None:
        check_partition_key(partition_key)
    dag = await session.get(Dag, dag_id)
    if dag is None:
        raise UnknownDag(dag_id)
    if dag.is_stale:
        raise DagError(f"the DAG {dag_id!r} is gone from its file {dag.path}")
    if run_id is not None and (not run_id or len(run_id) > _MAX_RUN_ID or "\0" in run_id):
        raise RowRefused(f"a run id has 1 to {_MAX_RUN_ID} characters, none of them NUL")
    if run_id in _STEPS_OF_A_PATH:
        raise RowRefused(
            f"a run cannot be called {run_id!r}", hint="a URL with this id would name another page"
        )
    if run_id is not None and run_id.startswith(_RESERVED):
        raise RowRefused(
            f"a manual run cannot have the id {run_id!r}",
            hint=f"{', '.join(_RESERVED)} begin the ids of runs that the scheduler creates",
        )
    now = await database_now(session)
    merged = {**dag.params, **(params or {})}
    schedule = schedule_from_json(dag.schedule)
    timetable, interval, logical_date = timetable_in(schedule), None, now
    if timetable is not None:
        interval = timetable.infer_manual_data_interval(run_after=now)
        if partition_key is None:
            partition_key = partition_key_of(schedule, interval)
        elif (info := run_of_key(schedule, partition_key)) is not None:
            interval, logical_date = info.data_interval, info.logical_date
    return await perform(
        session,
        create_run(
            dag_id,
            run_type=RunType.MANUAL,
            run_after=now,
            params=merged,
            run_id=run_id,
            logical_date=None if interval is None else logical_date,
            interval=interval,
            partition_key=partition_key,
        ),
    )
