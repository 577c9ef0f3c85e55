"""The step that stores trigger events under the leases of their streams: a flush of the recorder."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Final

from triggerer.domain.events import Fence
from triggerer.store.engine.clock import Now
from triggerer.store.engine.script import Row
from triggerer.store.recording.bulk import (
    KEYED_FIELDS,
    PLAIN_FIELDS,
    insert_into_sqlite,
    postgres_insert_plain,
)
from triggerer.store.wakeups.notify import notify_cte
from triggerer.store.wakeups.signals import Signal


@dataclass(frozen=True, slots=True)
class RecordEvents:
    """A step: one row, with the DAGs for which events may wait now, and the numbers (from 1) of the fences that hold.

    Rows whose fence does not hold are not stored. Nobody can take over the streams of the others until the
    transaction has ended. On PostgreSQL the statement also notifies other processes, so that it can be a
    transaction by itself; on SQLite there are none to notify.

    Args:
        columns: The `PLAIN_FIELDS`, or the `KEYED_FIELDS`, of all rows, a list for each field.
        fence_numbers: For each row the number (from 1) of its fence in `fences`; 0: it needs none.
        sender: See `AnnouncementTransport`.
    """

    columns: Sequence[Sequence[Any]]
    fence_numbers: Sequence[int]
    fences: Sequence[Fence]
    sender: str

    def on_sqlite(self, connection: sqlite3.Connection, now: Now) -> list[Row]:
        digests = json.dumps([fence.stream_digest for fence in self.fences])
        shown = set(connection.execute(_SQLITE_SHOWN, (digests,))) if self.fences else set()
        held = [number for number, fence in enumerate(self.fences, 1) if tuple(fence) in shown]
        columns = self.columns
        if len(held) < len(self.fences):
            allowed = {0, *held}
            is_held = [number in allowed for number in self.fence_numbers]
            columns = [list(compress(column, is_held)) for column in columns]
        dag_ids: Sequence[str] = ()
        if columns[0]:
            dag_ids, _ = insert_into_sqlite(connection, columns, want_ids=False)
        return [(dag_ids, held)]

    def on_postgres(self) -> tuple[str, Sequence[Any]]:
        fences = [list(column) for column in zip(*self.fences, strict=True)] or [[], [], []]
        return _POSTGRES[len(self.columns)], (
            self.sender,
            *self.columns,
            self.fence_numbers,
            *fences,
        )


_SQLITE_SHOWN: Final = (
    "SELECT digest, owner, epoch FROM stream WHERE digest IN (SELECT value FROM json_each(?))"
)


def _postgres(fields: Sequence[str]) -> str:
    first = 3 + len(fields)
    insert = postgres_insert_plain(
        fields, condition="WHERE fence = 0 OR fence IN (SELECT number FROM held)"
    )
    notify = notify_cte(Signal.EVENTS_QUEUED, sender="$1", dag_ids="SELECT dag_ids FROM waiting")
    return f"""
WITH held AS MATERIALIZED (
    SELECT f.number
    FROM unnest(${first}::text[], ${first + 1}::text[], ${first + 2}::bigint[])
         WITH ORDINALITY AS f(digest, owner, epoch, number)
    JOIN stream s ON s.digest = f.digest AND s.owner = f.owner AND s.epoch = f.epoch
    -- Sorted, or two flushes could deadlock.
    ORDER BY s.digest
    FOR SHARE OF s
), {insert}, waiting AS (
    SELECT array_agg(DISTINCT dag_id) AS dag_ids FROM queued
), {notify}
SELECT (SELECT dag_ids FROM waiting), (SELECT array_agg(number) FROM held), (SELECT count(*) FROM notified)
"""


_POSTGRES: Final = {len(fields): _postgres(fields) for fields in (PLAIN_FIELDS, KEYED_FIELDS)}
"""By the number of the columns."""
