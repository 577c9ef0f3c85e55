"""The DAGs that may be due, and the runs that are created from their waiting events."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.runs import RunType
from triggerer.errors import DagError, RowRefused, UnknownDag
from triggerer.store.engine.clock import Now
from triggerer.store.engine.database import database_now
from triggerer.store.engine.script import (
    Announcement,
    Row,
    Script,
    database_instant,
    literal,
    perform,
    single_step,
)
from triggerer.store.engine.statement import Statement, in_list, json_from
from triggerer.store.models import Dag
from triggerer.store.queries.scheduling.new_run import HINT, CreatedRun, CreateRun, EventSelection
from triggerer.store.wakeups.signals import Signal

_TICK: Final = timedelta(microseconds=1)
_MAX_RUN_ID: Final = 250

_CANDIDATES: Final = Statement(
    """
SELECT d.dag_id FROM dag d
WHERE NOT d.is_paused AND NOT d.is_stale AND d.schedule IS NOT NULL
  AND EXISTS (SELECT 1 FROM queued_asset_event q {HINT}
              WHERE q.dag_id = d.dag_id AND q.run_pk IS NULL)
ORDER BY d.dag_id
""",
    HINT=HINT,
)

_LOCK: Final = Statement(
    "SELECT dag_id FROM dag WHERE dag_id {IN_DAGS} ORDER BY dag_id FOR NO KEY UPDATE",
    IN_DAGS=in_list("dag_ids", "text"),
)


@dataclass(frozen=True, slots=True)
class LockDags:
    """A step: lock these DAGs against other schedulers until the commit. On SQLite nobody else can be writing.

    The lock is the weaker one: others may still insert runs, which refer to the row.
    """

    dag_ids: Collection[str]

    def on_sqlite(self, connection: sqlite3.Connection, now: Now) -> list[Row]:
        return []

    def on_postgres(self) -> tuple[str, Sequence[Any]]:
        return _LOCK(dag_ids=list(self.dag_ids)).on_postgres()

    def with_begin(self) -> str:
        dag_ids = ", ".join(literal(dag_id) for dag_id in self.dag_ids)
        return _LOCK.postgres.replace("$1", f"ARRAY[{dag_ids}]")


# One row for each asset of the DAG with events queued, which one index lookup finds. (With EXISTS, PostgreSQL would
# join with the whole queue.) Queued events are never counted beyond the bound. The assets are those that the DAG waits
# for, directly or through an alias.
SNAPSHOT: Final = Statement(
    """
SELECT d.dag_id, d.schedule, d.max_active_runs, d.events_per_run, d.params,
       (SELECT count(*) FROM dag_run r
        WHERE r.dag_id = d.dag_id AND r.state IN ('queued', 'running')) AS active_runs,
       w.asset_id, a.name, a.uri, w.alias,
       CASE WHEN d.events_per_run IS NULL THEN 1 ELSE (
           SELECT count(*) FROM (
               SELECT 1 FROM queued_asset_event c {HINT}
               WHERE c.dag_id = d.dag_id AND c.asset_id = w.asset_id AND c.run_pk IS NULL
               LIMIT {bound}) AS counted) END AS queued,
       {VERSION} AS version
FROM dag d
JOIN (
    SELECT s.dag_id, s.asset_id, NULL AS alias FROM dag_schedule_asset s
    UNION ALL
    SELECT l.dag_id, m.asset_id, n.name FROM dag_schedule_alias l
    JOIN asset_alias n ON n.id = l.alias_id
    JOIN asset_alias_member m ON m.alias_id = l.alias_id
) w ON w.dag_id = d.dag_id
JOIN asset a ON a.id = w.asset_id
WHERE d.dag_id {IN_DAGS}
  AND NOT d.is_paused AND NOT d.is_stale AND d.schedule IS NOT NULL
  AND (SELECT 1 FROM queued_asset_event q {HINT}
       WHERE q.dag_id = d.dag_id AND q.asset_id = w.asset_id AND q.run_pk IS NULL
       LIMIT 1) IS NOT NULL
ORDER BY d.dag_id, w.asset_id
""",
    HINT=HINT,
    IN_DAGS=in_list("dag_ids", "text"),
    VERSION=("NULL", "d.xmin::text"),
)


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """One asset of one DAG with events queued; the rows of a DAG are adjacent."""

    dag_id: str
    schedule: Any
    max_active_runs: int
    events_per_run: int | None
    params: Mapping[str, Any]
    active_runs: int
    asset_id: int
    name: str
    uri: str
    alias: str | None
    queued: int
    version: str | None
    """The version of the DAG's row, see `Unchanged`."""


async def find_candidates(session: AsyncSession) -> list[str]:
    """Return the DAGs, neither paused nor stale, for which an event waits; by id."""
    rows = await perform(session, single_step(_CANDIDATES()))
    return [dag_id for (dag_id,) in rows]


def lock_and_read(dag_ids: Collection[str], *, bound: int) -> Script[list[WaitingRow]]:
    """Lock these DAGs against other schedulers until the commit, and return what waits for them.

    Args:
        bound: The queued events of an asset are counted up to this number.
    """
    if not dag_ids:
        return []
    # A statement of its own: a snapshot that locks the rows itself, and has to wait for the lock, still
    # sees the queue as it was before the other scheduler's commit.
    yield LockDags(dag_ids)
    return waiting_rows((yield SNAPSHOT(dag_ids=list(dag_ids), bound=bound)))


def waiting_rows(rows: Sequence[Row]) -> list[WaitingRow]:
    """Return what the step `SNAPSHOT` has read."""
    return [
        WaitingRow(dag_id, json_from(schedule), most, each, json_from(params), *others)
        for dag_id, schedule, most, each, params, *others in rows
    ]


def create_run(
    dag_id: str,
    *,
    run_type: RunType,
    params: Mapping[str, Any],
    run_after: datetime | None = None,
    run_id: str | None = None,
    selection: EventSelection | None = None,
) -> Script[CreatedRun]:
    """Insert a queued run with the events that it takes, and announce it.

    Args:
        run_after: None: the present instant, which is not before that of any event that the run takes. For a
            run that takes events, a given instant is only a lower bound. If the id made of it is taken, the next
            free microsecond is used.
        run_id: None: `<type>__<run_after>`.
        selection: The run takes these of the events that are queued for the DAG; None: none of them.
    Raises:
        RowRefused: The DAG has a run of this id.
    """
    step = CreateRun(dag_id, run_type, params, run_after, run_id, selection)
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
) -> CreatedRun:
    """Queue a run that a person has asked for: also if the DAG is paused, or has `max_active_runs`.

    Args:
        params: They replace those of the DAG with the same names.
    Raises:
        UnknownDag: There is no such DAG.
        DagError: Its file is gone.
        RowRefused: The DAG has a run of this id, or the id cannot be one.
    """
    dag = await session.get(Dag, dag_id)
    if dag is None:
        raise UnknownDag(dag_id)
    if dag.is_stale:
        raise DagError(f"the DAG {dag_id!r} is gone from its file {dag.path}")
    if run_id is not None and (not run_id or len(run_id) > _MAX_RUN_ID or "\0" in run_id):
        raise RowRefused(f"a run id has 1 to {_MAX_RUN_ID} characters, none of them NUL")
    now = await database_now(session)
    merged = {**dag.params, **(params or {})}
    return await perform(
        session,
        create_run(dag_id, run_type=RunType.MANUAL, run_after=now, params=merged, run_id=run_id),
    )
