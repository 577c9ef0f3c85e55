"""The steps for DAGs that are scheduled by partition keys, such as one run for each day.

1. An event of such a DAG waits in the DAG's queue (`queued_asset_event`) until a scheduler divides it among keys.
2. Each of these keys then has a share of the event: a row in `dag_partition_event`.
3. In a roll-up, a run waits for events with several keys. For instance, the run of a day waits for the events of each
   hour. Each event key is a part of the run's key. `dag_partition_part` contains the parts that have arrived.
4. Once the key is due, its run takes all shares of the key.

While a scheduler performs these steps, it has locked the DAG's row. So two schedulers never work on one DAG.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

from triggerer.domain.partitions.dividing import KeyedEvent, Part, Share
from triggerer.store.database.clock import Now
from triggerer.store.database.script import Row, Script
from triggerer.store.database.statement import (
    ParameterRows,
    Statement,
    in_list,
    instant_from,
    parameter_rows,
    sqlite_instant,
)
from triggerer.store.runs.creation.create_run_step import HINT
from triggerer.store.schema.models.dags import NEVER

DIVIDED: Final = 0
"""The `run_pk` of a queue entry whose event was divided among partition keys. No run has this primary key."""

_IN_KEYS: Final = in_list("keys", "text")
_IN_EVENTS: Final = in_list("event_ids", "bigint")
_NEVER: Final = (f"'{sqlite_instant(NEVER)}'", f"'{NEVER.isoformat()}'::timestamptz")

# `_ASSETS` finds the assets that the DAG's condition names. `UNDIVIDED` reads only the queue entries of these assets.
# Entries of other assets stay in the queue, because a later condition may name these assets again. On PostgreSQL,
# LATERAL looks up each named asset, because a plain join would read all entries.
_ASSETS: Final = """SELECT s.asset_id FROM dag_schedule_asset s WHERE s.dag_id = {dag_id}
      UNION
      SELECT m.asset_id FROM dag_schedule_alias l JOIN asset_alias_member m ON m.alias_id = l.alias_id
      WHERE l.dag_id = {dag_id}"""
UNDIVIDED: Final = Statement(
    """
SELECT w.asset_event_id, w.asset_id, a.name, a.uri, e.partition_key, e.timestamp
FROM ({FIRST}) AS w
{EVENT}
JOIN asset a ON a.id = w.asset_id
ORDER BY w.asset_event_id
""",
    FIRST=(
        f"""
      SELECT q.asset_event_id, q.asset_id FROM queued_asset_event q {HINT[0]}
      WHERE q.dag_id = {{dag_id}} AND q.run_pk IS NULL AND q.asset_id IN ({_ASSETS})
      ORDER BY q.asset_id, q.asset_event_id LIMIT {{limit}}""",
        f"""
      SELECT v.asset_event_id, v.asset_id FROM ({_ASSETS}) AS n
      CROSS JOIN LATERAL (
          SELECT q.asset_event_id, q.asset_id FROM queued_asset_event q
          WHERE q.dag_id = {{dag_id}} AND q.asset_id = n.asset_id AND q.run_pk IS NULL
          ORDER BY q.asset_event_id LIMIT {{limit}}) AS v
      LIMIT {{limit}}""",
    ),
    EVENT=(
        "JOIN asset_event e ON e.id = w.asset_event_id",
        """CROSS JOIN LATERAL (SELECT o.partition_key, o.timestamp FROM asset_event o
                    WHERE o.id = w.asset_event_id LIMIT 1) AS e""",
    ),
)
SHARE: Final = Statement(
    """
INSERT INTO dag_partition_event (dag_id, partition_key, asset_event_id, asset_id)
SELECT {dag_id}, r.partition_key, r.asset_event_id, r.asset_id FROM {ROWS} AS r WHERE true
ON CONFLICT DO NOTHING RETURNING partition_key, asset_event_id
""",
    ROWS=parameter_rows(partition_key="text", asset_event_id="bigint", asset_id="bigint"),
)
PART: Final = Statement(
    """
INSERT INTO dag_partition_part (dag_id, partition_key, asset_id, part, first_at)
SELECT {dag_id}, r.partition_key, r.asset_id, r.part, r.first_at FROM {ROWS} AS r WHERE true
ON CONFLICT DO NOTHING
""",
    ROWS=parameter_rows(
        partition_key="text", asset_id="bigint", part="text", first_at="timestamptz"
    ),
)
TAKE_OUT: Final = Statement(
    """
UPDATE queued_asset_event SET run_pk = {DIVIDED} WHERE dag_id = {dag_id} AND asset_event_id {IN_EVENTS}
""",
    DIVIDED=(str(DIVIDED), str(DIVIDED)),
    IN_EVENTS=_IN_EVENTS,
)
DROP: Final = Statement(
    "DELETE FROM queued_asset_event WHERE dag_id = {dag_id} AND asset_event_id {IN_EVENTS}",
    IN_EVENTS=_IN_EVENTS,
)
KNOWN: Final = Statement(
    """
SELECT partition_key, runs, due_at, newest_at FROM dag_partition
WHERE dag_id = {dag_id} AND partition_key {IN_KEYS}
""",
    IN_KEYS=_IN_KEYS,
)
PARTS: Final = Statement(
    """
SELECT p.partition_key, p.asset_id, a.name, a.uri, p.part, p.first_at
FROM dag_partition_part p JOIN asset a ON a.id = p.asset_id
WHERE p.dag_id = {dag_id} AND p.partition_key {IN_KEYS}
ORDER BY p.partition_key, p.asset_id, p.part
""",
    IN_KEYS=_IN_KEYS,
)
_ALIASES: Final = Statement(
    """
SELECT m.asset_id, n.name FROM dag_schedule_alias l
JOIN asset_alias n ON n.id = l.alias_id
JOIN asset_alias_member m ON m.alias_id = l.alias_id
WHERE l.dag_id = {dag_id}
"""
)
STORE_KEYS: Final = Statement(
    """
INSERT INTO dag_partition (dag_id, partition_key, due_at, newest_at, noted_at, runs)
SELECT {dag_id}, r.partition_key, r.due_at, r.newest_at, r.noted_at, 0 FROM {ROWS} AS r WHERE true
ON CONFLICT (dag_id, partition_key) DO UPDATE
SET due_at = excluded.due_at, newest_at = excluded.newest_at, noted_at = excluded.noted_at
""",
    ROWS=parameter_rows(
        partition_key="text",
        due_at="timestamptz",
        newest_at="timestamptz",
        noted_at="timestamptz",
    ),
)
LATER: Final = Statement(
    """
SELECT partition_key FROM dag_partition
WHERE dag_id = {dag_id} AND noted_at > {soon} AND due_at < {NEVER}
ORDER BY noted_at LIMIT {limit}
""",
    NEVER=_NEVER,
)
BEGIN: Final = Statement(
    """
UPDATE dag_partition_part SET first_at = {at}
WHERE dag_id = {dag_id} AND partition_key {IN_KEYS} AND first_at > {soon}
""",
    IN_KEYS=_IN_KEYS,
)
DUE: Final = Statement(
    """
SELECT partition_key, due_at FROM dag_partition
WHERE dag_id = {dag_id} AND due_at < {NEVER}
ORDER BY due_at, partition_key LIMIT {limit}
""",
    NEVER=_NEVER,
)
_WAITING: Final = Statement(
    """
SELECT DISTINCT partition_key FROM dag_partition_part WHERE dag_id = {dag_id}
ORDER BY partition_key LIMIT {limit}
"""
)
_NEWEST: Final = Statement(
    """
SELECT e.id, e.asset_id, a.name, a.uri, e.partition_key, e.timestamp
FROM (SELECT (SELECT max(e.id) FROM asset_event e WHERE e.asset_id = s.asset_id) AS id
      FROM dag_schedule_asset s WHERE s.dag_id = {dag_id}) AS n
JOIN asset_event e ON e.id = n.id
JOIN asset a ON a.id = e.asset_id
ORDER BY e.id
"""
)
# `due_at` of a key that is not due is NEVER, so such keys sort last.
_WAKE: Final = Statement(
    """
UPDATE dag SET next_run_after = n.due_at, last_run_at = CASE WHEN {has_run} THEN {NOW} ELSE last_run_at END
FROM (SELECT coalesce((SELECT p.due_at FROM dag_partition p WHERE p.dag_id = {dag_id}
                       ORDER BY p.due_at LIMIT 1), {NEVER}) AS due_at) AS n
WHERE dag_id = {dag_id} AND ({has_run} OR next_run_after <> n.due_at)
""",
    NOW=(":now", "clock_timestamp()"),
    NEVER=_NEVER,
)


@dataclass(frozen=True, slots=True)
class KnownKey:
    """The stored record of a partition key."""

    runs: int
    """How many runs the scheduler has created for the key."""
    due_at: datetime | None
    """When the next run of the key may start. None: the key needs another event first."""
    newest_at: datetime
    """The instant of the key's newest event."""


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """The record to store for a partition key."""

    partition_key: str
    due_at: datetime | None
    """When the next run of the key may start. None: the key needs another event first."""
    newest_at: datetime
    """The instant of the key's newest event."""


def undivided(dag_id: str, *, limit: int) -> Script[list[KeyedEvent]]:
    """Return up to `limit` events that wait for the DAG and are not divided among partition keys, sorted by id."""
    return keyed_events((yield UNDIVIDED(dag_id=dag_id, limit=limit)))


def newest_events(dag_id: str) -> Script[list[KeyedEvent]]:
    """Return the newest event of each asset that the DAG's condition names directly, not through an alias."""
    return keyed_events((yield _NEWEST(dag_id=dag_id)))


def store_shares(dag_id: str, shares: Sequence[Share]) -> Script[list[Share]]:
    """Store the shares of divided events, and record which parts have arrived. Return the shares that are new."""
    if not shares:
        return []
    rows = [(one.partition_key, one.event.id, one.event.asset_id) for one in shares]
    stored = yield SHARE(dag_id=dag_id, rows=ParameterRows(rows))
    new = {(key, event) for key, event in stored}
    added = [one for one in shares if (one.partition_key, one.event.id) in new]
    first: dict[tuple[str, int, str], datetime] = {}
    for one in added:
        part = (one.partition_key, one.event.asset_id, one.part)
        first[part] = min(first.get(part, one.event.timestamp), one.event.timestamp)
    if first:
        yield PART(dag_id=dag_id, rows=ParameterRows([(*part, at) for part, at in first.items()]))
    return added


def leave_queue(dag_id: str, *, divided: Iterable[int], refused: Iterable[int]) -> Script[None]:
    """Mark the queue entries of divided events as `DIVIDED`, and delete the entries of refused events.

    Args:
        divided: The ids of divided events.
        refused: The ids of events that could not be divided, for instance because the mapper refused their partition
            key.
    """
    for statement, event_ids in ((TAKE_OUT, list(divided)), (DROP, list(refused))):
        if event_ids:
            yield statement(dag_id=dag_id, event_ids=event_ids)


def known_keys(dag_id: str, keys: Iterable[str]) -> Script[dict[str, KnownKey]]:
    """Return the stored records of these keys, by key. Keys without a record are left out."""
    rows = yield KNOWN(dag_id=dag_id, keys=list(keys))
    return {
        key: KnownKey(runs, None if _instant(due) == NEVER else _instant(due), _instant(at))
        for key, runs, due, at in rows
    }


def parts_of(
    dag_id: str, keys: Iterable[str], *, has_aliases: bool
) -> Script[dict[str, list[Part]]]:
    """Return, by key, the parts that wait for the key's next run. Keys without parts are left out.

    Args:
        has_aliases: True if the DAG's condition has aliases.
    """
    aliases = (yield from alias_names(dag_id)) if has_aliases else {}
    found: dict[str, list[Part]] = {}
    for key, asset, name, uri, part, at in (yield PARTS(dag_id=dag_id, keys=list(keys))):
        one = Part(asset, name, uri, part, _instant(at), aliases.get(asset, frozenset()))
        found.setdefault(key, []).append(one)
    return found


def alias_names(dag_id: str) -> Script[Mapping[int, frozenset[str]]]:
    """Return, by asset id, the names of the DAG's aliases that resolve to the asset."""
    found: dict[int, frozenset[str]] = {}
    for asset, name in (yield _ALIASES(dag_id=dag_id)):
        found[asset] = found.get(asset, frozenset()) | {name}
    return found


def record_keys(dag_id: str, keys: Sequence[KeyRecord], *, now: datetime) -> Script[None]:
    """Store the records of these keys. `now` is stored as the instant when the due times were computed."""
    if keys:
        rows = [
            (one.partition_key, one.due_at or NEVER, one.newest_at, one.due_at and now)
            for one in keys
        ]
        yield STORE_KEYS(dag_id=dag_id, rows=ParameterRows(rows))


def keys_computed_after(dag_id: str, soon: datetime, *, limit: int) -> Script[list[str]]:
    """Return up to `limit` keys whose due time was computed (`noted_at`) at an instant later than `soon`.

    `soon` is the present instant, plus a tolerance. A later `noted_at` was stored before the clock was set back, so the
    caller must compute the due time again.
    """
    return [key for (key,) in (yield LATER(dag_id=dag_id, soon=soon, limit=limit))]


def begin_parts(dag_id: str, keys: Iterable[str], *, after: datetime, at: datetime) -> Script[None]:
    """Set `first_at` to `at` in the parts of these keys whose `first_at` is later than `after`.

    `after` is the present instant, plus a tolerance. A later `first_at` was stored before the clock was set back. The
    part's deadlines count from `first_at`, so they would come too late.
    """
    yield BEGIN(dag_id=dag_id, keys=list(keys), soon=after, at=at)


def due_keys(dag_id: str, *, limit: int) -> Script[list[tuple[str, datetime]]]:
    """Return up to `limit` keys whose due time is known, each with this instant, sorted by instant.

    The instant may be in the future. Keys that wait for a further event are left out.
    """
    rows = yield DUE(dag_id=dag_id, limit=limit)
    return [(key, _instant(at)) for key, at in rows]


def waiting_keys(dag_id: str, *, limit: int) -> Script[list[str]]:
    """Return at most `limit` keys with waiting events, whether the key is due or not, sorted by key."""
    return [key for (key,) in (yield _WAITING(dag_id=dag_id, limit=limit))]


@dataclass(frozen=True, slots=True)
class TakePartition:
    """A step without result rows: a run takes all events that wait for its partition key.

    Afterwards the key has no parts, and is not due until another event arrives.
    """

    dag_id: str
    partition_key: str
    run_pk: int

    def on_sqlite(self, connection: sqlite3.Connection, now: Now) -> list[Row]:
        values = {"dag_id": self.dag_id, "key": self.partition_key, "run_pk": self.run_pk}
        for statement in SQLITE_TAKE:
            connection.execute(statement, values)
        return []

    def on_postgres(self) -> tuple[str, Sequence[Any]]:
        return _POSTGRES_TAKE, (self.dag_id, self.partition_key, self.run_pk)


# Without INDEXED BY, SQLite would read all events that the key ever had, because it has no statistics.
SQLITE_TAKE: Final = (
    """
UPDATE dag_partition_event INDEXED BY ix_dag_partition_event_waiting SET run_pk = :run_pk
WHERE dag_id = :dag_id AND partition_key = :key AND run_pk IS NULL
""",
    "DELETE FROM dag_partition_part WHERE dag_id = :dag_id AND partition_key = :key",
    f"""
UPDATE dag_partition SET due_at = {_NEVER[0]}, noted_at = NULL, runs = runs + 1
WHERE dag_id = :dag_id AND partition_key = :key
""",
)
_POSTGRES_TAKE: Final = f"""
WITH taken AS (
    UPDATE dag_partition_event SET run_pk = $3::bigint
    WHERE dag_id = $1::text AND partition_key = $2::text AND run_pk IS NULL
), gone AS (
    DELETE FROM dag_partition_part WHERE dag_id = $1::text AND partition_key = $2::text
)
UPDATE dag_partition SET due_at = {_NEVER[1]}, noted_at = NULL, runs = runs + 1
WHERE dag_id = $1::text AND partition_key = $2::text
"""


@dataclass(frozen=True, slots=True)
class StoreNextKey:
    """A step without result rows: store in the DAG's row when its next partition key is due."""

    dag_id: str
    has_run: bool
    """True if this transaction creates runs of the DAG. The step then stores the present time as `last_run_at`."""

    def on_sqlite(self, connection: sqlite3.Connection, now: Now) -> list[Row]:
        return _WAKE(dag_id=self.dag_id, has_run=self.has_run, now=now()).on_sqlite(connection, now)

    def on_postgres(self) -> tuple[str, Sequence[Any]]:
        return _WAKE(dag_id=self.dag_id, has_run=self.has_run).on_postgres()


def keyed_events(rows: Sequence[Row]) -> list[KeyedEvent]:
    """Return rows with the columns (event id, asset id, name, URI, partition key, instant) as events."""
    return [
        KeyedEvent(event, asset, name, uri, key, _instant(at))
        for event, asset, name, uri, key, at in rows
    ]


def _instant(value: str | datetime) -> datetime:
    return cast("datetime", instant_from(value))
