"""The statement that stores the events of many messages in one transaction, if the leases of their streams hold."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Final

import orjson

from triggerer.domain.events import Fence
from triggerer.store.database.clock import Now
from triggerer.store.database.script import Row
from triggerer.store.database.statement import Statement, in_list
from triggerer.store.database.wakeups.notify import notify_cte
from triggerer.store.database.wakeups.signals import Signal
from triggerer.store.events.bulk_insert import (
    PLAIN_FIELDS,
    POSTGRES_INSERT,
    POSTGRES_TIMESTAMP,
    insert_into_sqlite,
)
from triggerer.store.events.event_rows import EventRows


@dataclass(frozen=True, slots=True)
class RecordEvents:
    """A step: store a batch of trigger events, and queue them for DAGs.

    A row is not stored if its fence does not hold. The streams of the stored rows stay locked until the transaction
    ends, so that no other instance claims them meanwhile. PostgreSQL's statement also notifies
    other processes, so the transaction needs no second statement.

    The one result row begins with three values:

    - the ids of DAGs for which events may have been queued,
    - the numbers of the fences that hold,
    - how many events are new. Duplicates do not count.

    Args:
        rows: At least one row.
        fences: The fences that the rows need. A row names its fence by the place in this list,
            counted from 1. 0: the row needs no fence.
        sender: The id of this process. A process ignores the notifications that it sent itself.
    """

    rows: EventRows
    fences: Sequence[Fence]
    sender: str

    def on_sqlite(self, connection: sqlite3.Connection, now: Now) -> list[Row]:
        digests = [fence.stream_digest for fence in self.fences]
        shown = set(_SQLITE_SHOWN(digests=digests).on_sqlite(connection, now)) if digests else set()
        valid = [number for number, fence in enumerate(self.fences, 1) if tuple(fence) in shown]
        columns = self.rows.columns()
        if len(valid) < len(self.fences):
            allowed = {0, *valid}
            is_allowed = [number in allowed for number in self.rows.fence_numbers()]
            columns = [list(compress(column, is_allowed)) for column in columns]
        dag_ids: Sequence[str] = ()
        new = 0
        if columns[0]:
            dag_ids, _, new = insert_into_sqlite(connection, columns, want_ids=False)
        return [(dag_ids, valid, new)]

    def on_postgres(self) -> tuple[str, Sequence[Any]]:
        rows = self.rows
        has_keys = rows.partition_keys is not None
        # All extras are sent as one JSON text, and all keys as another. In an array, the driver would have to encode
        # each value.
        extras, keys = f"[{','.join(rows.extras)}]", orjson.dumps(rows.keys).decode()
        fences = [list(column) for column in zip(*self.fences, strict=True)] or [[], [], []]
        shared = map(list, zip(*rows.shared, strict=True))
        arguments = (self.sender, *fences, extras, keys, rows.shared_indices, *shared)
        return _POSTGRES[has_keys], (*arguments, rows.partition_keys) if has_keys else arguments


_SQLITE_SHOWN: Final = Statement(
    "SELECT digest, owner, epoch FROM stream WHERE digest {IN_DIGESTS}",
    IN_DIGESTS=in_list("digests", "text"),
)


# Many rows have equal fields, such as the asset id. Each set of equal fields is sent once, as one element of each
# array. A row contains the index of this element (`shared`). Reading the element takes constant time, because the
# elements have equal sizes. With a join instead, PostgreSQL might compare each row with each set of fields.
_VALUES: Final = {
    "asset_id": "($8::bigint[])[shared + 1]",
    "timestamp": POSTGRES_TIMESTAMP.format(timestamp="($9::timestamptz[])[shared + 1]"),
    "watcher_id": "($10::bigint[])[shared + 1]",
    "ordinal": "($11::int[])[shared + 1]",
}
_FENCE: Final = "($12::int[])[shared + 1]"


def _postgres(*, has_keys: bool) -> str:
    fields = (*PLAIN_FIELDS, "partition_key") if has_keys else PLAIN_FIELDS
    functions = (
        "json_array_elements($5::json), jsonb_array_elements_text($6::jsonb), unnest($7::int[])"
    )
    names = "extra, idempotency_key, shared"
    if has_keys:
        functions, names = f"{functions}, unnest($13::text[])", f"{names}, partition_key"
    insert = POSTGRES_INSERT.format(
        columns=", ".join(fields),
        values=", ".join(_VALUES.get(field, field) for field in fields),
        given=f"ROWS FROM ({functions}) WITH ORDINALITY AS given ({names}, place)",
        condition=f"WHERE {_FENCE} = 0 OR {_FENCE} IN (SELECT number FROM held)",
    )
    notify = notify_cte(Signal.EVENTS_QUEUED, sender="$1", dag_ids="SELECT dag_ids FROM waiting")
    return f"""
WITH held AS MATERIALIZED (
    SELECT f.number
    FROM unnest($2::text[], $3::text[], $4::bigint[])
         WITH ORDINALITY AS f(digest, owner, epoch, number)
    JOIN stream s ON s.digest = f.digest AND s.owner = f.owner AND s.epoch = f.epoch
    -- Sorted, or two flushes could deadlock.
    ORDER BY s.digest
    FOR SHARE OF s
), {insert}, waiting AS (
    SELECT array_agg(DISTINCT dag_id) AS dag_ids FROM queued
), {notify}
SELECT (SELECT dag_ids FROM waiting), (SELECT array_agg(number) FROM held), (SELECT count(*) FROM new),
       (SELECT count(*) FROM notified)
"""


# Most batches have no partition keys. The statement for these batches needs no array of nulls, which would cost time.
_POSTGRES: Final = {has_keys: _postgres(has_keys=has_keys) for has_keys in (False, True)}
"""The statements for batches without partition keys (False) and with partition keys (True)."""
