"""Finds the DAGs that may be due, and locks and reads the DAGs for a decision."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.dags.snapshots import DagRow, ReadDags, dag_rows
from triggerer.store.database.clock import Now
from triggerer.store.database.script import Row, Script, literal, perform, single_step
from triggerer.store.database.statement import Statement, in_list, instant_from, sqlite_instant
from triggerer.store.database.transactions import database_now
from triggerer.store.runs.creation.create_run_step import HINT
from triggerer.store.schema.models.dags import NEVER

# Finds the DAGs with queued events, which may be due. The query jumps from one DAG id in the queue to the next, with
# one index look-up for each. A join would read the whole queue. A look-up for each row of `dag` would be slower if few
# DAGs have queued events.
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
    """A step: lock these DAGs against other schedulers until the commit. SQLite has one writer and needs no lock.

    FOR NO KEY UPDATE is weaker than FOR UPDATE: other transactions can still insert runs that refer to the DAG's row.
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
    """A step: lock these DAGs, except DAGs that another transaction has locked. Return a row (DAG id) for each.

    SQLite has one writer, so on SQLite the step locks nothing and returns all DAGs.
    """

    dag_ids: Collection[str]

    def on_sqlite(self, connection: sqlite3.Connection, now: Now) -> list[Row]:
        return [(dag_id,) for dag_id in self.dag_ids]

    def on_postgres(self) -> tuple[str, Sequence[Any]]:
        return _LOCK_FREE(dag_ids=list(self.dag_ids)).on_postgres()


async def find_candidates(session: AsyncSession) -> list[str]:
    """Return the ids of the active DAGs (neither paused nor stale) with a schedule and queued events, sorted."""
    rows = await perform(session, single_step(CANDIDATES()))
    return [dag_id for (dag_id,) in rows]


@dataclass(frozen=True, slots=True)
class DueTimes:
    """The DAGs that are due at a known instant, and these instants."""

    now: datetime
    """The database's time, read before the DAGs."""
    due: Mapping[str, datetime]
    """DAG id to the instant when it is due, earliest first. The instant may have passed."""


async def find_due_times(session: AsyncSession) -> DueTimes:
    """Return when the active DAGs (neither paused nor stale) are due. DAGs without a known instant are left out.

    A DAG is due when the next run of its timetable is due, or when its next partition key is due.
    """
    now = await database_now(session)
    rows = await perform(session, single_step(_TIMED()))
    return DueTimes(now, {dag_id: cast("datetime", instant_from(due)) for dag_id, due in rows})


def lock_and_read(
    dag_ids: Collection[str], *, bound: int, waits: bool = True
) -> Script[list[DagRow]]:
    """Lock these DAGs against other schedulers until the commit, and return the rows that a decision needs.

    Args:
        bound: Counting of an asset's queued events stops at this number.
        waits: True to wait for DAGs that another transaction has locked; False to leave these DAGs out.
    """
    if not dag_ids:
        return []
    # Lock in a separate statement. A statement sees only what was committed before it began. If one statement locked a
    # DAG and also read the DAG's queue, it would miss the changes of the scheduler that had the lock before.
    if waits:
        yield LockDags(dag_ids)
    else:
        dag_ids = [dag_id for (dag_id,) in (yield LockFreeDags(dag_ids))]
        if not dag_ids:
            return []
    return dag_rows((yield ReadDags(list(dag_ids), bound)))
