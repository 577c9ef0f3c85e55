"""Finds the DAGs that may be due, and creates runs."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.runs import RunType
from triggerer.domain.schedules import (
    partition_key_of,
    run_of_key,
    schedule_from_json,
    timetable_in,
)
from triggerer.domain.storable import check_partition_key
from triggerer.errors import DagError, RowRefused, UnknownDag
from triggerer.store.dags.snapshots import DagRow, ReadDags, dag_rows
from triggerer.store.database.clock import Now
from triggerer.store.database.script import (
    Announcement,
    Row,
    Script,
    database_instant,
    literal,
    perform,
    single_step,
)
from triggerer.store.database.statement import Statement, in_list, instant_from, sqlite_instant
from triggerer.store.database.transactions import database_now
from triggerer.store.database.wakeups.signals import Signal
from triggerer.store.runs.new_run import HINT, CreatedRun, CreateRun, EventSelection
from triggerer.store.schema.models import Dag
from triggerer.store.schema.models.dags import NEVER

_TICK: Final = timedelta(microseconds=1)
_MAX_RUN_ID: Final = 250
# If a run has the id of a scheduled run, the scheduler assumes that it created this run. So no manual run may have such
# an id.
_RESERVED: Final = tuple(f"{kind}__" for kind in RunType if kind is not RunType.MANUAL)

# Finds the DAGs that have queued events and may therefore be due. The query jumps from one DAG id in the queue to the
# next, with one index look-up each. A join would read the whole queue. A look-up for every DAG would be no faster if
# few DAGs have queued events.
CANDIDATES: Final = Statement(
    """
WITH RECURSIVE waiting AS (
    SELECT (SELECT q.dag_id FROM queued_asset_event q {HINT}
            WHERE q.run_pk IS NULL ORDER BY q.dag_id LIMIT 1) AS dag_id
    UNION ALL
    SELECT (SELECT q.dag_id FROM queued_asset_event q {HINT}
            WHERE q.run_pk IS NULL AND q.dag_id > w.dag_id ORDER BY q.dag_id LIMIT 1)
    FROM waiting w WHERE w.dag_id IS NOT NULL
)
SELECT d.dag_id FROM dag d
WHERE NOT d.is_paused AND NOT d.is_stale AND d.schedule IS NOT NULL
  AND d.dag_id IN (SELECT w.dag_id FROM waiting w)
ORDER BY d.dag_id
""",
    HINT=HINT,
)
_TIMED: Final = Statement(
    """
SELECT d.dag_id, d.next_run_after FROM dag d
WHERE NOT d.is_paused AND NOT d.is_stale AND d.next_run_after < {NEVER}
ORDER BY d.next_run_after, d.dag_id
""",
    NEVER=(f"'{sqlite_instant(NEVER)}'", f"'{NEVER.isoformat()}'::timestamptz"),
)

_LOCK: Final = Statement(
    "SELECT dag_id FROM dag WHERE dag_id {IN_DAGS} ORDER BY dag_id {HOW}",
    IN_DAGS=in_list("dag_ids", "text"),
    HOW=("", "FOR NO KEY UPDATE"),
)
_LOCK_FREE: Final = Statement(
    "SELECT dag_id FROM dag WHERE dag_id {IN_DAGS} ORDER BY dag_id {HOW}",
    IN_DAGS=in_list("dag_ids", "text"),
    HOW=("", "FOR NO KEY UPDATE SKIP LOCKED"),
)


@dataclass(frozen=True, slots=True)
class LockDags:
    """A step: lock these DAGs against other schedulers until the commit. SQLite needs no lock: it has one writer.

    The lock is FOR NO KEY UPDATE, the weaker kind. So other transactions can still insert runs of the DAG, whose
    foreign key needs only that the DAG's row exists.
    """

    dag_ids: Collection[str]

    def on_sqlite(self, connection: sqlite3.Connection, now: Now) -> list[Row]:
        return []

    def on_postgres(self) -> tuple[str, Sequence[Any]]:
        return _LOCK(dag_ids=list(self.dag_ids)).on_postgres()

    def with_begin(self) -> str:
        dag_ids = ", ".join(literal(dag_id) for dag_id in self.dag_ids)
        return _LOCK.postgres.replace("$1", f"ARRAY[{dag_ids}]")


@dataclass(frozen=True, slots=True)
class LockFreeDags:
    """A step: lock these DAGs, except DAGs that somebody else has locked; return a row (DAG id) for each locked DAG.

    SQLite has one writer, so there the step returns all DAGs.
    """

    dag_ids: Collection[str]

    def on_sqlite(self, connection: sqlite3.Connection, now: Now) -> list[Row]:
        return [(dag_id,) for dag_id in self.dag_ids]

    def on_postgres(self) -> tuple[str, Sequence[Any]]:
        return _LOCK_FREE(dag_ids=list(self.dag_ids)).on_postgres()


async def find_candidates(session: AsyncSession) -> list[str]:
    """Return the ids of the active DAGs (neither paused nor stale) that have queued events, sorted."""
    rows = await perform(session, single_step(CANDIDATES()))
    return [dag_id for (dag_id,) in rows]


@dataclass(frozen=True, slots=True)
class Timed:
    """The DAGs with a timetable, and when they are due."""

    now: datetime
    """The database's time, read before the DAGs."""
    due: Mapping[str, datetime]
    """DAG id to the instant when it is due, earliest first. The instant may have passed."""


async def find_timed(session: AsyncSession) -> Timed:
    """Return the active DAGs (neither paused nor stale) whose timetable has a next run."""
    now = await database_now(session)
    rows = await perform(session, single_step(_TIMED()))
    return Timed(now, {dag_id: cast("datetime", instant_from(due)) for dag_id, due in rows})


def lock_and_read(
    dag_ids: Collection[str], *, bound: int, waits: bool = True
) -> Script[list[DagRow]]:
    """Lock these DAGs against other schedulers until the commit, and return the rows that a decision needs.

    Args:
        bound: Counting of an asset's queued events stops at this number.
        waits: True to wait for DAGs that others have locked; False to leave them out.
    """
    if not dag_ids:
        return []
    # The lock is a separate statement. A single statement would wait for the lock, and then still read the queue as it
    # was before the other scheduler's commit.
    if waits:
        yield LockDags(dag_ids)
    else:
        dag_ids = [dag_id for (dag_id,) in (yield LockFreeDags(dag_ids))]
        if not dag_ids:
            return []
    return dag_rows((yield ReadDags(list(dag_ids), bound)))


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
        run_after: The instant of the run. None: the present instant. If the run takes an event that is later, the
            run gets that event's instant. If `run_id` is None and a run with the resulting id exists, the instant is
            moved to the next free microsecond.
        run_id: The id of the run. None: `<type>__<run_after>`.
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
        params: They replace the DAG's parameters of the same names.
        partition_key: If the DAG's timetable produces keys, the run covers the data interval that belongs to the key.
            None: the key of the run's data interval, if the timetable produces keys.
    Raises:
        UnknownDag: There is no such DAG.
        DagError: The DAG is gone from its file, or its timetable never produces this key.
        RowRefused: The DAG has a run with this id, or the id or the key is not a valid one.
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
    if run_id is not None and run_id.startswith(_RESERVED):
        raise RowRefused(
            f"a run by hand cannot be called {run_id!r}",
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
