"""Backfills of a DAG's partition keys, with a limit on the runs that are active at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.actors import Actor
from triggerer.domain.backfills import Reprocess, Step, step_for
from triggerer.domain.conditions import aliases_of, assets_of
from triggerer.domain.instants import readable
from triggerer.domain.partitions import mapper_from_json
from triggerer.domain.partitions.ranges import keys_between
from triggerer.domain.runs import RunState
from triggerer.domain.schedules import OnPartitions, Schedule, run_of_key, schedule_from_json
from triggerer.domain.text.storable import check_partition_key
from triggerer.domain.timetables import DagRunInfo
from triggerer.errors import DagError, UnknownDag
from triggerer.operations.backfills import record_start, refuse_second
from triggerer.store.backfills import creation, execution, listing
from triggerer.store.dags.listing import list_dags
from triggerer.store.database.transactions import database_now
from triggerer.store.listing.views import BackfillView


@dataclass(frozen=True, slots=True)
class PlannedKey:
    """The step that a backfill would take for a partition key."""

    partition_key: str
    step: Step
    run_id: str | None
    """The key's newest run. None: there is no run."""
    run_state: str | None


async def is_partitioned(session: AsyncSession, dag_id: str) -> bool:
    """Return True if the DAG is scheduled by partition keys.

    Raises:
        UnknownDag: There is no such DAG.
        DagError: The DAG is gone from its file.
    """
    return isinstance(await _schedule(session, dag_id), OnPartitions)


async def keys_of_periods(
    session: AsyncSession, dag_id: str, from_date: datetime, to_date: datetime
) -> list[str]:
    """Return the partition keys of the past periods that start between two instants, both inclusive.

    Raises:
        UnknownDag: There is no such DAG.
        DagError: The DAG is not scheduled by partition keys, or its keys are not periods such as days. Or the range is
            empty or too large.
    """
    schedule = await _schedule(session, dag_id)
    if not isinstance(schedule, OnPartitions):
        raise DagError(f"the DAG {dag_id!r} is not scheduled by partition keys")
    names = {asset.name for asset in assets_of(schedule.condition)}
    written = [schedule.mappers.get(name, schedule.default_mapper) for name in sorted(names)]
    if aliases_of(schedule.condition) or not written:
        written.append(schedule.default_mapper)
    mappers = [mapper_from_json(one) for one in written]
    return keys_between(mappers, from_date, to_date, now=await database_now(session))


async def plan_keys(
    session: AsyncSession,
    dag_id: str,
    keys: Sequence[str],
    *,
    reprocess: Reprocess = Reprocess.NONE,
) -> list[PlannedKey]:
    """Return whether a backfill would run, repeat or skip each of these keys, in order. Change nothing.

    Raises:
        Errors of `start_key_backfill`, except `MoveRefused`.
    """
    checked, infos = await _checked(session, dag_id, keys)
    existing = await _existing(session, dag_id, checked, infos)
    planned = []
    for key in checked:
        run_id, state = existing.get(key, (None, None))
        shown = None if state is None else state.value
        planned.append(PlannedKey(key, step_for(state, reprocess), run_id, shown))
    return planned


async def start_key_backfill(
    session: AsyncSession,
    actor: Actor,
    dag_id: str,
    keys: Sequence[str],
    *,
    reprocess: Reprocess = Reprocess.NONE,
    max_active: int = 10,
    params: Mapping[str, Any] | None = None,
) -> BackfillView:
    """Start a backfill with one run for each key, in the order of `keys`.

    The first `max_active` runs are queued at once. Each time one of them ends, a scheduler queues the next. The runs
    take no events, so waiting events stay in the queue. If the DAG's timetable produces keys, a run covers the data
    interval of its key.

    Args:
        keys: The keys. A repeated key counts once.
        max_active: At most this number of the backfill's runs are queued or running at once.
        params: Values that replace the DAG's parameters of the same names. They also apply if a run is repeated.
    Raises:
        UnknownDag: There is no such DAG.
        DagError: The DAG is gone from its file, `keys` is empty, or `max_active` is below 1. Or the DAG's timetable
            never produces one of the keys, or the run of one of the keys is not due yet.
        RowRefused: A key cannot be stored.
        MoveRefused: The DAG has an unfinished backfill.
    """
    if max_active < 1:
        raise DagError(f"max_active must be at least 1, not {max_active}")
    checked, infos = await _checked(session, dag_id, keys)
    await refuse_second(session, dag_id)
    if infos:
        dates = [info.logical_date for info in infos]
        backfill_id = await creation.insert_backfill(
            session,
            dag_id,
            list(zip(infos, checked, strict=True)),
            from_date=min(dates),
            to_date=max(dates),
            reprocess=reprocess,
            max_active=max_active,
            params=params,
        )
    else:
        backfill_id = await creation.insert_key_backfill(
            session, dag_id, checked, reprocess=reprocess, max_active=max_active, params=params
        )
    await execution.advance(session, backfill_id)
    return await record_start(session, actor, backfill_id)


async def _checked(
    session: AsyncSession, dag_id: str, keys: Sequence[str]
) -> tuple[list[str], list[DagRunInfo]]:
    """Return the keys without repeats, and the timetable's run for each key.

    If the timetable produces no keys, the list of runs is empty.
    """
    schedule = await _schedule(session, dag_id)
    if not keys:
        raise DagError(f"there is no partition key of {dag_id!r} to run")
    for key in keys:
        check_partition_key(key)
    checked, now = list(dict.fromkeys(keys)), await database_now(session)
    infos = [info for key in checked if (info := run_of_key(schedule, key)) is not None]
    for info in infos:
        if info.run_after > now:
            raise DagError(
                f"the run for {readable(info.logical_date)} is not due before {readable(info.run_after)}"
            )
    return checked, infos


async def _existing(
    session: AsyncSession, dag_id: str, keys: Sequence[str], infos: Sequence[DagRunInfo]
) -> dict[str, tuple[str, RunState]]:
    """Return the id and the state of each key's newest run.

    If the timetable produces keys (`infos`), the run is found by its logical date, otherwise by its key.
    """
    if not infos:
        return await listing.runs_of_keys(session, dag_id, keys)
    dates = [info.logical_date for info in infos]
    found = await listing.existing_runs(session, dag_id, min(dates), max(dates))
    return {key: found[at] for key, at in zip(keys, dates, strict=True) if at in found}


async def _schedule(session: AsyncSession, dag_id: str) -> Schedule | None:
    found = await list_dags(session, dag=dag_id, limit=1)
    if not found:
        raise UnknownDag(dag_id)
    (dag,) = found
    if dag.is_stale:
        raise DagError(f"the DAG {dag_id!r} is gone from its file {dag.path}")
    return schedule_from_json(dag.schedule)
