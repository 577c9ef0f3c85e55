"""The step that creates a run and assigns its events: one statement on PostgreSQL, a few on SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from typing import Any, Final

from triggerer.domain.runs import RunState, RunType
from triggerer.domain.text.json_text import dump_json
from triggerer.store.database.clock import Now
from triggerer.store.database.script import Row
from triggerer.store.database.statement import sqlite_instant
from triggerer.store.database.wakeups.notify import notify_cte
from triggerer.store.database.wakeups.signals import Signal

# Names the index of waiting events, because SQLite without statistics may choose another index.
_INDEX: Final = "INDEXED BY ix_queued_asset_event_waiting"
HINT: Final = (_INDEX, "")
"""SQLite's and PostgreSQL's text after the table name `queued_asset_event`. SQLite needs the name of the index."""


@dataclass(frozen=True, slots=True)
class CreatedRun:
    """A new run."""

    pk: int
    dag_id: str
    run_id: str
    run_after: datetime


@dataclass(frozen=True, slots=True)
class EventSelection:
    """The waiting events of a DAG that a run takes.

    Args:
        per_asset: How many events of each asset in `asset_ids` the run takes, oldest first. None: the run takes all
            events of all assets.
    """

    per_asset: int | None = None
    asset_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Unchanged:
    """A condition for creating a run: the DAG's row has not changed since the scheduler read it.

    A scheduler that creates a run of the DAG also changes this row. So if the condition holds, no other scheduler has
    created a run of the DAG since. A `CreateRun` with this condition is a whole transaction, so it also notifies other
    processes of the run.

    SQLite does not need the condition, because no other process can write while the scheduler decides.

    Args:
        version: The version (`xmin`) of the DAG's row when it was read.
        sender: The id of this process. A process ignores the wake-ups that it sent itself.
    """

    version: str
    sender: str


@dataclass(frozen=True, slots=True)
class CreateRun:
    """A step: create a run. It returns a row (primary key, run id, run_after).

    The step returns no row if the run's id exists already. It also returns no row if `unchanged` is
    given, but the DAG's row has changed. If the run takes events, the step also changes the DAG's
    row. Then the condition `unchanged` of another scheduler no longer holds.

    `triggerer.store.runs.creation.create_run.create_run` explains the fields.
    """

    dag_id: str
    run_type: RunType
    params: Mapping[str, Any]
    run_after: datetime | None
    run_id: str | None
    selection: EventSelection | None
    unchanged: Unchanged | None = None
    logical_date: datetime | None = None
    interval: tuple[datetime, datetime] | None = None
    """The data interval of the run."""
    partition_key: str | None = None

    def on_sqlite(self, connection: sqlite3.Connection, now: Now) -> list[Row]:
        assert self.unchanged is None
        run_after = self.run_after or now()
        if self.selection is not None:
            # No event of a run may be later than the run. SQLite has one writer, so every event in the queue was stored
            # before now. Only a clock that is set back can make a run earlier than its events.
            run_after = max(run_after, now())
        run_id = self.run_id or f"{self.run_type}__{run_after.isoformat(timespec='microseconds')}"
        values = {
            "dag_id": self.dag_id,
            "run_id": run_id,
            "run_type": str(self.run_type),
            "run_after": sqlite_instant(run_after),
            "queued_at": sqlite_instant(now() if self._is_scheduled else run_after),
            "params": self._params(),
            "partition_key": self.partition_key,
            **{
                name: None if instant is None else sqlite_instant(instant)
                for name, instant in zip(_INSTANTS, self._instants(), strict=True)
            },
        }
        created = connection.execute(_SQLITE_CREATE, values)
        pk = created.lastrowid
        if not created.rowcount or pk is None:
            return []
        if self.selection is not None:
            self._take(connection, pk, self.selection)
            connection.execute(_SQLITE_MADE, {"now": sqlite_instant(now()), "dag_id": self.dag_id})
        return [(pk, run_id, run_after)]

    @property
    def _is_scheduled(self) -> bool:
        return self.run_type is RunType.SCHEDULED

    def _instants(self) -> tuple[datetime | None, ...]:
        return (self.logical_date, *(self.interval or (None, None)))

    def _take(self, connection: sqlite3.Connection, pk: int, selection: EventSelection) -> None:
        values = {"run_pk": pk, "dag_id": self.dag_id, "per_asset": selection.per_asset}
        if selection.per_asset is None:
            connection.execute(_SQLITE_TAKE_ALL, values)
            return
        for asset_id in selection.asset_ids:
            connection.execute(_SQLITE_TAKE_OLDEST, {**values, "asset_id": asset_id})

    def on_postgres(self) -> tuple[str, Sequence[Any]]:
        arguments: list[Any] = [
            self.run_after,
            self.dag_id,
            self.run_id,
            str(self.run_type),
            self._params(),
            *self._instants(),
            self.partition_key,
        ]
        selection = self.selection
        variant = _Variant(selection is not None, self.unchanged is not None, self._is_scheduled)
        if selection is not None and selection.per_asset is None:
            variant = replace(variant, takes_all=True)
        elif selection is not None:
            arguments += [selection.per_asset, *selection.asset_ids]
            variant = replace(variant, assets=len(selection.asset_ids))
        if self.unchanged is not None:
            arguments += [self.unchanged.version, self.unchanged.sender]
        return _postgres(variant), arguments

    def _params(self) -> str:
        """Raises: RowRefused: A parameter has no JSON form."""
        return dump_json(dict(self.params), "a param of the run").decode()


COLUMNS: Final = (
    "dag_id, run_id, run_type, state, run_after, queued_at, params, attempt, cancel_requested, "
    "logical_date, data_interval_start, data_interval_end, partition_key, priority, pools"
)
# With this format, PostgreSQL's `to_char` writes an instant in UTC as `isoformat` does.
RUN_ID_INSTANT: Final = 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'
_INSTANTS: Final = ("logical_date", "interval_start", "interval_end")
_SQLITE_CREATE: Final = f"""
INSERT INTO dag_run ({COLUMNS})
VALUES (:dag_id, :run_id, :run_type, '{RunState.QUEUED}', :run_after, :queued_at, :params, 0, false,
        :logical_date, :interval_start, :interval_end, :partition_key,
        coalesce((SELECT d.priority FROM dag d WHERE d.dag_id = :dag_id), 0),
        (SELECT d.pools FROM dag d WHERE d.dag_id = :dag_id))
ON CONFLICT (dag_id, run_id) DO NOTHING
"""
_SQLITE_MADE: Final = "UPDATE dag SET last_run_at = :now WHERE dag_id = :dag_id"
_SQLITE_TAKE_ALL: Final = f"""
UPDATE queued_asset_event {_INDEX} SET run_pk = :run_pk WHERE dag_id = :dag_id AND run_pk IS NULL
"""
# The inner query returns one value, the highest id to take. So the database executes the inner query once. If it
# returned a list of ids, a planner with wrong statistics might execute it again for each row.
_SQLITE_TAKE_OLDEST: Final = f"""
UPDATE queued_asset_event {_INDEX} SET run_pk = :run_pk
WHERE dag_id = :dag_id AND asset_id = :asset_id AND run_pk IS NULL AND asset_event_id <= (
    SELECT max(asset_event_id) FROM (
        SELECT q.asset_event_id FROM queued_asset_event q {_INDEX}
        WHERE q.dag_id = :dag_id AND q.asset_id = :asset_id AND q.run_pk IS NULL
        ORDER BY q.asset_event_id
        LIMIT :per_asset) AS oldest)
"""


@dataclass(frozen=True, slots=True)
class _Variant:
    """The options on which the text of PostgreSQL's statement depends."""

    takes: bool
    """True if the run takes events."""
    is_conditional: bool
    """True if the condition `Unchanged` is given."""
    is_scheduled: bool = False
    takes_all: bool = False
    """True if the run takes all waiting events."""
    assets: int = 0
    """The number of assets whose oldest events the run takes. 0: it takes all waiting events, or none."""


# No event of a run may be later than the run. PostgreSQL takes a statement's snapshot before the statement reads the
# time, so all events that the statement sees are older than this time. If the run takes events, a given `run_after` is
# only a lower bound, because newer events may have been committed since it was chosen.
_POSTGRES: Final = f"""
at AS MATERIALIZED (
    SELECT {{now}} AS now, {{queued_at}} AS queued_at
    FROM (SELECT clock_timestamp() AS clock) AS read {{condition}}
), run AS (
    INSERT INTO dag_run ({COLUMNS})
    SELECT $2::text,
           coalesce($3::text, $4::text || '__' || to_char(
               now AT TIME ZONE 'UTC', '{RUN_ID_INSTANT}')),
           $4::text, '{RunState.QUEUED}', now, queued_at, $5::text::json, 0, false,
           $6::timestamptz, $7::timestamptz, $8::timestamptz, $9::text,
           coalesce((SELECT d.priority FROM dag d WHERE d.dag_id = $2::text), 0),
           (SELECT d.pools FROM dag d WHERE d.dag_id = $2::text)
    FROM at
    ON CONFLICT (dag_id, run_id) DO NOTHING
    RETURNING id, dag_id, run_id, run_after
)"""
# If another transaction is changing the DAG's row, this UPDATE waits until that transaction ends. A condition on `xmin`
# is then checked with the committed version of the row.
_POSTGRES_CHANGED: Final = """dag_row AS (
    UPDATE dag SET last_run_at = clock_timestamp() WHERE dag_id = $2::text {condition} RETURNING dag_id
)"""
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
              LIMIT $10::bigint) AS oldest)
)"""


@cache
def _postgres(variant: _Variant) -> str:
    moves = [_POSTGRES_TAKE_ALL] if variant.takes_all else []
    moves += [_POSTGRES_TAKE_OLDEST.format(place=11 + n) for n in range(variant.assets)]
    which = "greatest" if variant.takes else "coalesce"
    now = f"{which}($1::timestamptz, clock)"
    queued_at = "clock" if variant.is_scheduled else now
    last = 10 + variant.assets if variant.assets else 9
    parts = []
    if variant.takes:
        same = f"AND xmin = ${last + 1}::text::xid" if variant.is_conditional else ""
        parts.append(_POSTGRES_CHANGED.format(condition=same))
    parts.append(
        _POSTGRES.format(
            now=now,
            queued_at=queued_at,
            condition=", dag_row" if variant.is_conditional else "",
        )
    )
    parts += [f"taken_{n} AS {move}" for n, move in enumerate(moves)]
    answer = "SELECT id, run_id, run_after FROM run"
    if variant.is_conditional:
        ids = "SELECT array_agg(dag_id) FROM run"
        parts.append(notify_cte(Signal.RUNS_QUEUED, sender=f"${last + 2}", dag_ids=ids))
        answer += " WHERE (SELECT count(*) FROM notified) > 0"
    return f"WITH {', '.join(parts)}\n{answer}"
