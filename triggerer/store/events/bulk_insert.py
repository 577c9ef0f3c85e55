"""Inserts asset events and their queue entries, many in one statement. No code of the store runs more often.

Measured on two shared cores, SQLite 3.40 and PostgreSQL 15 (tests/benchmarks/store_bench.py):

- On SQLite, an INSERT with VALUES for 100 to 150 rows is twice as fast as an INSERT that reads rows with `json_each`,
  and 1.5 times as fast as an INSERT for each row.
- While the event loop is busy, the INSERT for 100 to 150 rows is four times as fast as an INSERT for each row, because
  the thread waits for Python's global lock after each statement.
- With 1,000 rows in a statement instead of 100 to 150, storing a message takes a seventh less time.
- On PostgreSQL, one INSERT that unnests arrays is ten times as fast as the ORM. JSON texts cost the driver only a third
  of the time of arrays, so `batch_statement` sends JSON texts for the events of triggers.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

from triggerer.store.database.clock import Now
from triggerer.store.database.script import Row, Script
from triggerer.store.database.statement import sqlite_instant


class EventRow(NamedTuple):
    """A new row of `asset_event`, without its id."""

    asset_id: int
    extra: str
    """JSON text."""
    timestamp: datetime
    watcher_id: int
    """0 if the event is not from a watcher."""
    idempotency_key: str
    ordinal: int
    partition_key: str | None = None
    source_dag_id: str | None = None
    source_run_id: str | None = None
    source_task_id: str | None = None


@dataclass(frozen=True, slots=True)
class Inserted:
    """The outcome of a bulk insert."""

    dag_ids: tuple[str, ...]
    """DAGs for which events were queued. If some rows were duplicates, a DAG may be listed without a new event."""
    event_ids: tuple[int, ...]
    """The ids of the new rows in the given order, without duplicates; empty if `want_ids` is false."""


_COLUMNS: Final = ", ".join(EventRow._fields)

# The numbers of rows that an INSERT may have. A number is skipped if it exceeds SQLite's limit of parameters.
_SQLITE_ROWS: Final = (1_000, 100, 16, 1)
# SQLite has one writer at a time. So all rows with ids above `_SQLITE_HIGHEST`, which is read before the insert, are
# new rows of this step.
_SQLITE_HIGHEST: Final = (
    "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'asset_event'), 0)"
)
_SQLITE_NEW: Final = "SELECT id FROM asset_event WHERE id > ? ORDER BY id"
_SQLITE_QUEUE: Final = (
    "INSERT INTO queued_asset_event (dag_id, asset_event_id, asset_id) "
    "SELECT s.dag_id, e.id, e.asset_id "
    "FROM asset_event e "
    "JOIN dag_schedule_asset s ON s.asset_id = e.asset_id "
    "JOIN dag d ON d.dag_id = s.dag_id AND NOT d.is_stale "
    "WHERE e.id > ?"
)
_SQLITE_WAITING: Final = (
    "SELECT DISTINCT s.dag_id FROM dag_schedule_asset s "
    "JOIN dag d ON d.dag_id = s.dag_id AND NOT d.is_stale "
    "WHERE s.asset_id IN (SELECT value FROM json_each(?))"
)
# Queues a single event. An asset has at most one row in `dag_schedule_asset` for each DAG, so no entry is inserted
# twice.
_SQLITE_QUEUE_ONE: Final = (
    "INSERT INTO queued_asset_event (dag_id, asset_event_id, asset_id) "
    "SELECT s.dag_id, ?1, s.asset_id FROM dag_schedule_asset s "
    "JOIN dag d ON d.dag_id = s.dag_id AND NOT d.is_stale WHERE s.asset_id = ?2 RETURNING dag_id"
)

PLAIN_FIELDS: Final = EventRow._fields[:-4]
"""The fields that every event has. The others are for events of tasks, and for events with a partition key."""
# PostgreSQL computes the ids after ORDER BY, so they follow the order of the rows.
#
# A host's clock may be ahead of the server's clock. So `POSTGRES_TIMESTAMP` replaces an instant in the future with the
# server's time. A run also gets the server's time, so no event is later than the run that takes it.
POSTGRES_INSERT: Final = """
new AS (
    INSERT INTO asset_event ({columns})
    SELECT {values}
    FROM {given}
    {condition}
    ORDER BY place
    ON CONFLICT DO NOTHING
    RETURNING id, asset_id
), queued AS (
    INSERT INTO queued_asset_event (dag_id, asset_event_id, asset_id)
    SELECT s.dag_id, new.id, new.asset_id
    FROM new
    JOIN dag_schedule_asset s ON s.asset_id = new.asset_id
    JOIN dag d ON d.dag_id = s.dag_id AND NOT d.is_stale
    RETURNING dag_id
)"""
"""A template of two common table expressions: `new` inserts the rows of `given`, `queued` queues the new events.

`given` is a table with the events' columns and a column `place`, the order of the rows.
"""


POSTGRES_TIMESTAMP: Final = "least({timestamp}, clock_timestamp())"
_VALUES: Final = {
    "extra": "extra::json",
    "timestamp": POSTGRES_TIMESTAMP.format(timestamp="timestamp"),
}
_GIVEN: Final = f"""
unnest(
    $2::bigint[], $3::text[], $4::timestamptz[], $5::bigint[], $6::text[], $7::int[],
    $8::text[], $9::text[], $10::text[], $11::text[]
) WITH ORDINALITY AS given ({_COLUMNS}, place)"""
_POSTGRES: Final = f"""
WITH {
    POSTGRES_INSERT.format(
        columns=_COLUMNS,
        values=", ".join(_VALUES.get(column, column) for column in EventRow._fields),
        given=_GIVEN,
        condition="",
    )
}
SELECT (SELECT array_agg(DISTINCT dag_id) FROM queued),
       CASE WHEN $1::boolean THEN (SELECT array_agg(id ORDER BY id) FROM new) END
"""


@dataclass(frozen=True, slots=True)
class InsertEvents:
    """A step: insert and queue events. It returns a row (ids of DAGs with queued events, ids of the new events).

    If some events were duplicates, the row may name a DAG whose queue did not change. If `want_ids` is false, the row
    contains no event ids.
    """

    rows: Sequence[EventRow]
    want_ids: bool

    def on_sqlite(self, connection: sqlite3.Connection, now: Now) -> list[Row]:
        columns = list(zip(*self.rows, strict=True))
        while len(columns) > len(PLAIN_FIELDS) and set(columns[-1]) == {None}:
            del columns[-1]
        return [insert_into_sqlite(connection, columns, want_ids=self.want_ids)[:2]]

    def on_postgres(self) -> tuple[str, Sequence[Any]]:
        return _POSTGRES, (self.want_ids, *map(list, zip(*self.rows, strict=True)))


def insert_events(rows: Sequence[EventRow], *, want_ids: bool = False) -> Script[Inserted]:
    """Insert the events that are not stored yet, and queue them for every DAG that waits for their assets.

    An event is already stored if a row with the same watcher, asset, idempotency key and ordinal exists. Events are
    also queued for paused DAGs, but not for stale DAGs. If the database refuses one row, no row is written. The caller
    must wake the scheduler.
    """
    if not rows:
        return Inserted((), ())
    ((dag_ids, event_ids),) = yield InsertEvents(rows, want_ids)
    return Inserted(tuple(dag_ids or ()), tuple(event_ids or ()))


def insert_into_sqlite(
    connection: sqlite3.Connection, columns: Sequence[Sequence[Any]], *, want_ids: bool
) -> tuple[Sequence[str], Sequence[int], int]:
    """Insert events and queue them.

    No Python code runs for each row, because it would hold Python's global lock and delay the event loop.

    Args:
        columns: One list for each field of `EventRow`, with a value for each event. The last four fields may be left
            out. There is at least one event.
    Returns:
        The ids of DAGs for which events may have been queued; the ids of the new events, empty if `want_ids` is false;
        and the number of new events.
    """
    asset_ids, extras, timestamps, *others = columns
    columns = (asset_ids, extras, _sqlite_instants(timestamps), *others)
    width = len(columns)
    if len(asset_ids) == 1:
        dag_ids, event_ids = _insert_one(connection, [value for (value,) in columns])
        return dag_ids, event_ids if want_ids else (), len(event_ids)
    (highest,) = connection.execute(_SQLITE_HIGHEST).fetchone()
    most = connection.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) // width
    done, left, count = 0, len(asset_ids), 0
    # The rows are split into statements of only a few sizes, so that SQLite's driver keeps each statement prepared.
    for size in _SQLITE_ROWS:
        while left >= size <= most:
            values: list[Any] = [None] * (size * width)
            for place, column in enumerate(columns):
                values[place::width] = column[done : done + size]
            count += connection.execute(_sqlite_insert(size, width), values).rowcount
            done += size
            left -= size
    dag_ids = ()
    if connection.execute(_SQLITE_QUEUE, (highest,)).rowcount:
        of_assets = json.dumps(sorted(set(asset_ids)))
        dag_ids = tuple(dag_id for (dag_id,) in connection.execute(_SQLITE_WAITING, (of_assets,)))
    new = connection.execute(_SQLITE_NEW, (highest,)) if want_ids else ()
    return dag_ids, [event_id for (event_id,) in new], count


@lru_cache(maxsize=8)
def _sqlite_insert(rows: int, columns: int) -> str:
    places = f"({', '.join('?' * columns)})"
    return (
        f"INSERT INTO asset_event ({', '.join(EventRow._fields[:columns])})"
        f" VALUES {', '.join([places] * rows)} ON CONFLICT DO NOTHING"
    )


def _insert_one(
    connection: sqlite3.Connection, values: Sequence[Any]
) -> tuple[Sequence[str], Sequence[int]]:
    """Insert and queue one event with two statements instead of four, because most messages come alone.

    Returns:
        The ids of the DAGs for which the event was queued, and the event's id. Both are empty if the event is a
        duplicate.
    """
    created = connection.execute(_sqlite_insert(1, len(values)), values)
    if not created.rowcount or created.lastrowid is None:
        return (), ()
    queued = connection.execute(_SQLITE_QUEUE_ONE, (created.lastrowid, values[0])).fetchall()
    return [dag_id for (dag_id,) in queued], (created.lastrowid,)


def _sqlite_instants(instants: Sequence[datetime]) -> Sequence[str]:
    """Return the instants as texts. Each distinct instant is formatted once, because most rows share one."""
    texts = {instant: sqlite_instant(instant) for instant in set(instants)}
    return list(map(texts.__getitem__, instants))
