"""The step that stores trigger events under the leases of their streams: all that a flush of the recorder does."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Final

from triggerer.domain.events import Fence
from triggerer.store.engine.clock import Clock
from triggerer.store.engine.script import Row
from triggerer.store.recording.bulk import (
    PLAIN_FIELDS,
    POSTGRES_INSERT,
    POSTGRES_PLAIN_ARRAYS,
    POSTGRES_PLAIN_VALUES,
    insert_into_sqlite,
)
from triggerer.store.wakeups.notify import telling
from triggerer.store.wakeups.signals import Signal


@dataclass(frozen=True, slots=True)
class RecordEvents:
    """One row: the DAGs for which events may wait now, and the places (from 1) of the fences that hold.

    Nobody takes the streams of these fences over until the transaction has ended. Rows whose fence does
    not hold are left out. On PostgreSQL other processes are told in the same statement, so that it can be
    a transaction by itself; on SQLite there are none that would have to be.

    Args:
        columns: The `PLAIN_FIELDS` of all rows, a list for each field.
        fence_places: For each row the place of its fence in `fences`; 0: it needs none.
        sender: How this process knows its own announcements.
    """

    columns: Sequence[Sequence[Any]]
    fence_places: Sequence[int]
    fences: Sequence[Fence]
    sender: str

    def on_sqlite(self, connection: sqlite3.Connection, clock: Clock) -> list[Row]:
        digests = json.dumps([fence.stream_digest for fence in self.fences])
        shown = set(connection.execute(_SQLITE_SHOWN, (digests,))) if self.fences else set()
        held = [place for place, fence in enumerate(self.fences, 1) if tuple(fence) in shown]
        columns = self.columns
        if len(held) < len(self.fences):
            allowed = {0, *held}
            is_held = [place in allowed for place in self.fence_places]
            columns = [list(compress(column, is_held)) for column in columns]
        dag_ids: Sequence[str] = ()
        if columns[0]:
            dag_ids, _ = insert_into_sqlite(connection, columns, want_ids=False)
        return [(dag_ids, held)]

    def on_postgres(self) -> tuple[str, Sequence[Any]]:
        fences = [list(column) for column in zip(*self.fences, strict=True)] or [[], [], []]
        return _POSTGRES, (self.sender, *self.columns, self.fence_places, *fences)


_SQLITE_SHOWN: Final = (
    "SELECT digest, owner, epoch FROM stream WHERE digest IN (SELECT value FROM json_each(?))"
)
_POSTGRES: Final = f"""
WITH held AS MATERIALIZED (
    SELECT f.place
    FROM unnest($9::text[], $10::text[], $11::bigint[]) WITH ORDINALITY AS f(digest, owner, epoch, place)
    JOIN stream s ON s.digest = f.digest AND s.owner = f.owner AND s.epoch = f.epoch
    -- In one order everywhere, or two flushes could wait for one another.
    ORDER BY s.digest
    FOR SHARE OF s
), {
    POSTGRES_INSERT.format(
        columns=", ".join(PLAIN_FIELDS),
        values=POSTGRES_PLAIN_VALUES,
        given=", ".join((*PLAIN_FIELDS, "fence")),
        arrays=f"{POSTGRES_PLAIN_ARRAYS}, $8::int[]",
        condition="WHERE fence = 0 OR fence IN (SELECT place FROM held)",
    )
}, waiting AS (
    SELECT array_agg(DISTINCT dag_id) AS dag_ids FROM queued
), {telling(Signal.EVENTS_QUEUED, sender="$1", dag_ids="SELECT dag_ids FROM waiting")}
SELECT (SELECT dag_ids FROM waiting), (SELECT array_agg(place) FROM held), (SELECT count(*) FROM told)
"""
