"""Queues a run by hand."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.actors import Actor
from triggerer.domain.schedules import (
    Schedule,
    partition_key_of,
    run_of_key,
    schedule_from_json,
    timetable_in,
)
from triggerer.domain.timetables import DataInterval
from triggerer.operations.audit import Action, record
from triggerer.store.dags.listing import list_dags
from triggerer.store.runs.creation.create_run import create_manual_run
from triggerer.store.runs.logical_dates import set_logical_date


async def trigger_dag(
    session: AsyncSession,
    actor: Actor,
    dag_id: str,
    *,
    run_id: str | None = None,
    params: Mapping[str, Any] | None = None,
    logical_date: datetime | None = None,
    partition_key: str | None = None,
) -> str:
    """Queue a manual run, even if the DAG is paused or has `max_active_runs` runs. The run takes no queued events.

    Args:
        run_id: The run's id. None: it is made from the present instant.
        params: Values that replace the DAG's parameters of the same names.
        logical_date: The DAG's timetable infers the data interval from this instant. Without a timetable, the interval
            starts and ends at this instant. None: the present instant if there is a timetable, otherwise no date.
        partition_key: The run's key, for any DAG. If the DAG's timetable produces keys, the run covers the data
            interval of this key. None: the run gets the timetable's key for its data interval, if there is one.
    Returns:
        The run's id.
    Raises:
        UnknownDag: There is no such DAG.
        DagError: The DAG is gone from its file, or its timetable produces keys but never this key.
        RowRefused: The DAG has a run with this id, or the id or the key is invalid.
    """
    created = await create_manual_run(
        session, dag_id, run_id=run_id, params=params, partition_key=partition_key
    )
    if logical_date is not None:
        (dag,) = await list_dags(session, dag=dag_id, limit=1)
        schedule = schedule_from_json(dag.schedule)
        interval = _interval(schedule, logical_date, partition_key)
        key = partition_key or partition_key_of(schedule, interval)
        await set_logical_date(session, created.pk, logical_date, interval, partition_key=key)
    after = {
        "params": None if params is None else dict(params),
        "logical_date": None if logical_date is None else logical_date.isoformat(),
        "partition_key": partition_key,
    }
    await record(session, actor, Action.DAG_TRIGGER, f"{dag_id} {created.run_id}", after=after)
    return created.run_id


def _interval(
    schedule: Schedule | None, logical_date: datetime, partition_key: str | None
) -> DataInterval:
    timetable = timetable_in(schedule)
    if timetable is None:
        return DataInterval.exact(logical_date)
    info = None if partition_key is None else run_of_key(schedule, partition_key)
    if info is not None:
        return info.data_interval
    return timetable.infer_manual_data_interval(run_after=logical_date)
