"""The step that makes a run and moves its events into it: one statement on PostgreSQL, a few on SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from typing import Any, Final

import orjson

from triggerer.domain.runs import RunState, RunType
from triggerer.store.engine.clock import Clock
from triggerer.store.engine.script import Row
from triggerer.store.engine.statement import sqlite_instant
from triggerer.store.wakeups.notify import telling
from triggerer.store.wakeups.signals import Signal

# SQLite, which keeps no statistics unless told to, would go through a DAG's whole history by the
# primary key; PostgreSQL sees for itself that the partial index is the small one.
_INDEX: Final = "INDEXED BY ix_queued_asset_event_waiting"
HINT: Final = (_INDEX, "")


@dataclass(frozen=True, slots=True)
class CreatedRun:
    """A run that was made."""

    pk: int
    dag_id: str
    run_id: str
    run_after: datetime


@dataclass(frozen=True, slots=True)
class Takes:
    """Which of a DAG's waiting events a run takes.

    Args:
        each: None: all of them. Otherwise at most so many of each asset, the oldest.
        asset_ids: The assets that `each` is about.
    """

    each: int | None = None
    asset_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Unchanged:
    """A run is made unless the row of its DAG has changed since it was read: nobody has planned since.

    PostgreSQL only: the step is then a transaction by itself, which tells other processes of the run. On SQLite
    nobody else can be writing between a look and what is done about it.

    Args:
        version: As `SNAPSHOT`, or the run before, gave it.
        sender: How this process knows its own announcements.
        waits_for: For whoever has not looked since: a run is made if for each of these assets an event waits, and
            the DAG has room for one more run. None: a look has just shown both.
    """

    version: str
    sender: str
    waits_for: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class CreateRun:
    """A step: (primary key, run id, run_after) of the new run, or no row if there is one of this id.

    See `triggerer.store.queries.scheduling.candidates.create_run`. A run that takes events also changes the row of its
    DAG, so that whoever planned for the DAG meanwhile notices. With `unchanged` there is no row either if the DAG's
    row has changed; the row that there is ends with the version that the DAG's row has now.
    """

    dag_id: str
    run_type: RunType
    params: Mapping[str, Any]
    run_after: datetime | None
    run_id: str | None
    takes: Takes | None
    unchanged: Unchanged | None = None

    def on_sqlite(self, connection: sqlite3.Connection, clock: Clock) -> list[Row]:
        assert self.unchanged is None
        # Nobody else can be writing: whatever is queued was queued before this instant.
        run_after = self.run_after or clock()
        run_id = self.run_id or f"{self.run_type}__{run_after.isoformat(timespec='microseconds')}"
        values = {
            "dag_id": self.dag_id,
            "run_id": run_id,
            "run_type": str(self.run_type),
            "run_after": sqlite_instant(run_after),
            "params": self._params(),
        }
        created = connection.execute(_SQLITE_CREATE, values).fetchall()
        if not created:
            return []
        ((pk,),) = created
        if self.takes is not None:
            self._take(connection, pk, self.takes)
        return [(pk, run_id, run_after)]

    def _take(self, connection: sqlite3.Connection, pk: int, takes: Takes) -> None:
        values = {"run_pk": pk, "dag_id": self.dag_id, "each": takes.each}
        if takes.each is None:
            connection.execute(_SQLITE_TAKE_ALL, values)
            return
        for asset_id in takes.asset_ids:
            connection.execute(_SQLITE_TAKE_OLDEST, {**values, "asset_id": asset_id})

    def on_postgres(self) -> tuple[str, Sequence[Any]]:
        arguments: list[Any] = [
            self.run_after,
            self.dag_id,
            self.run_id,
            str(self.run_type),
            self._params(),
        ]
        takes = self.takes
        kind = _Kind(takes is not None, self.unchanged is not None)
        if takes is not None and takes.each is None:
            kind = replace(kind, takes_all=True)
        elif takes is not None:
            arguments += [takes.each, *takes.asset_ids]
            kind = replace(kind, assets=len(takes.asset_ids))
        if self.unchanged is not None:
            arguments += [self.unchanged.version, self.unchanged.sender]
            if self.unchanged.waits_for is not None:
                arguments.append(self.unchanged.waits_for)
                kind = replace(kind, looks=True)
        return _postgres(kind), arguments

    def _params(self) -> str:
        return orjson.dumps(dict(self.params)).decode()


_COLUMNS: Final = (
    "dag_id, run_id, run_type, state, run_after, queued_at, params, attempt, cancel_requested"
)
_SQLITE_CREATE: Final = f"""
INSERT INTO dag_run ({_COLUMNS})
VALUES (:dag_id, :run_id, :run_type, '{RunState.QUEUED}', :run_after, :run_after, :params, 0, false)
ON CONFLICT (dag_id, run_id) DO NOTHING RETURNING id
"""
_SQLITE_TAKE_ALL: Final = f"""
UPDATE queued_asset_event {_INDEX} SET run_pk = :run_pk WHERE dag_id = :dag_id AND run_pk IS NULL
"""
# Up to the last one's id, rather than a list of ids: the inner query is then asked once, whatever
# the planner believes about the sizes of its parts. The same on PostgreSQL.
_SQLITE_TAKE_OLDEST: Final = f"""
UPDATE queued_asset_event {_INDEX} SET run_pk = :run_pk
WHERE dag_id = :dag_id AND asset_id = :asset_id AND run_pk IS NULL AND asset_event_id <= (
    SELECT max(asset_event_id) FROM (
        SELECT q.asset_event_id FROM queued_asset_event q {_INDEX}
        WHERE q.dag_id = :dag_id AND q.asset_id = :asset_id AND q.run_pk IS NULL
        ORDER BY q.asset_event_id
        LIMIT :each) AS oldest)
"""


@dataclass(frozen=True, slots=True)
class _Kind:
    """Which statement of PostgreSQL's."""

    takes: bool
    is_conditional: bool
    looks: bool = False
    takes_all: bool = False
    assets: int = 0


# One statement has one snapshot, taken before the clock is read: a run is not older than one of its
# events, whatever is committed meanwhile. Where it takes events, an instant that is given is only the
# earliest: others may have been committed since it was read.
_POSTGRES: Final = f"""
at AS MATERIALIZED (
    SELECT {{now}} AS now {{condition}}
), run AS (
    INSERT INTO dag_run ({_COLUMNS})
    SELECT $2::text,
           coalesce($3::text, $4::text || '__' || to_char(
               now AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"')),
           $4::text, '{RunState.QUEUED}', now, now, $5::text::jsonb, 0, false
    FROM at
    ON CONFLICT (dag_id, run_id) DO NOTHING
    RETURNING id, dag_id, run_id, run_after
)"""
# Whoever waits here for somebody who changes the row finds the version of what that one has committed.
_POSTGRES_CHANGED: Final = """dag_row AS (
    UPDATE dag SET is_stale = is_stale WHERE dag_id = $2::text {condition} RETURNING xmin::text AS version
)"""
_POSTGRES_STILL_DUE: Final = """
    AND (SELECT count(*) FROM dag_run r
         WHERE r.dag_id = $2::text AND r.state IN ('queued', 'running')) < max_active_runs
    AND NOT EXISTS (
        SELECT FROM unnest(${place}::bigint[]) AS w(asset_id)
        WHERE (SELECT 1 FROM queued_asset_event e
               WHERE e.dag_id = $2::text AND e.asset_id = w.asset_id AND e.run_pk IS NULL
               LIMIT 1) IS NULL)"""
_POSTGRES_TAKE_ALL: Final = """(
    UPDATE queued_asset_event q SET run_pk = run.id FROM run
    WHERE q.dag_id = $2::text AND q.run_pk IS NULL
)"""
_POSTGRES_TAKE_OLDEST: Final = """(
    UPDATE queued_asset_event q SET run_pk = run.id FROM run
    WHERE q.dag_id = $2::text AND q.asset_id = ${place}::bigint AND q.run_pk IS NULL
      AND q.asset_event_id <= (
          SELECT max(asset_event_id) FROM (
              SELECT o.asset_event_id FROM queued_asset_event o
              WHERE o.dag_id = $2::text AND o.asset_id = ${place}::bigint AND o.run_pk IS NULL
              ORDER BY o.asset_event_id
              LIMIT $6::bigint) AS oldest)
)"""


@cache
def _postgres(kind: _Kind) -> str:
    moves = [_POSTGRES_TAKE_ALL] if kind.takes_all else []
    moves += [_POSTGRES_TAKE_OLDEST.format(place=7 + n) for n in range(kind.assets)]
    which = "greatest" if kind.takes else "coalesce"
    now = f"{which}($1::timestamptz, clock_timestamp())"
    last = 6 + kind.assets if kind.assets else 5
    parts = []
    if kind.takes:
        same = f"AND xmin = ${last + 1}::text::xid" if kind.is_conditional else ""
        if kind.looks:
            same += _POSTGRES_STILL_DUE.format(place=last + 3)
        parts.append(_POSTGRES_CHANGED.format(condition=same))
    parts.append(_POSTGRES.format(now=now, condition="FROM dag_row" if kind.is_conditional else ""))
    parts += [f"taken_{n} AS {move}" for n, move in enumerate(moves)]
    answer = "SELECT id, run_id, run_after FROM run"
    if kind.is_conditional:
        ids = "SELECT array_agg(dag_id) FROM run"
        parts.append(telling(Signal.RUNS_QUEUED, sender=f"${last + 2}", dag_ids=ids))
        answer = "SELECT run.id, run.run_id, run.run_after, dag_row.version FROM run, dag_row"
        answer += " WHERE (SELECT count(*) FROM told) > 0"
    return f"WITH {', '.join(parts)}\n{answer}"
