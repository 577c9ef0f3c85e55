"""Many asset events are written in few statements."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.store.seeding import add_asset, add_dag, asset_json, events_in, queue_of
from triggerer.store.database.clock import Now
from triggerer.store.database.script import Row, single_step
from triggerer.store.database.transactions import Database
from triggerer.store.events.bulk_insert import EventRow, insert_events

THEN = datetime(2026, 1, 1, tzinfo=UTC)


def rows(count: int, first: int = 0, *, source: str | None = None) -> list[EventRow]:
    return [
        EventRow(1, f'{{"n": {n}}}', THEN, 7, f"k{n}", n % 3, source, source, source, source)
        for n in range(first, first + count)
    ]


# On SQLite, one statement inserts 1,000, 100, 16 or 1 rows.
@pytest.mark.parametrize("count", [1, 15, 16, 17, 99, 100, 101, 117, 999, 1_000, 1_001, 2_117])
@pytest.mark.parametrize("source", [None, "somewhere"])
async def test_all_are_stored_in_order_with_all_that_they_are(
    database: Database, count: int, source: str | None
) -> None:
    await add_asset(database, 1, "a")
    await add_dag(database, "d", asset_json("a"), assets=[1])
    given = rows(count, source=source)
    inserted = await database.perform(insert_events(given, want_ids=True))
    assert inserted.dag_ids == ("d",)
    stored = await events_in(database)
    assert [event.id for event in stored] == list(inserted.event_ids)
    assert [
        (event.idempotency_key, event.ordinal, event.extra, event.source_dag_id, event.watcher_id)
        for event in stored
    ] == [(row.idempotency_key, row.ordinal, {"n": n}, source, 7) for n, row in enumerate(given)]
    assert {event.source_task_id for event in stored} == {source}
    assert [event_id for event_id, _ in await queue_of(database, "d")] == list(inserted.event_ids)


@pytest.mark.parametrize("source", [None, "somewhere"])
async def test_an_older_sqlite_takes_fewer_parameters(sqlite: Database, source: str | None) -> None:
    await add_asset(sqlite, 1, "a")

    def lower(connection: sqlite3.Connection) -> None:
        connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 999)

    await sqlite.perform(single_step(OnConnection(lower)))
    given = rows(1_117, source=source)
    await sqlite.perform(insert_events(given))
    stored = await events_in(sqlite)
    assert [event.idempotency_key for event in stored] == [row.idempotency_key for row in given]


@dataclass
class OnConnection:
    """A step that passes the connection of SQLite's writer to `work`."""

    work: Callable[[sqlite3.Connection], None]

    def on_sqlite(self, connection: sqlite3.Connection, now: Now) -> list[Row]:
        self.work(connection)
        return []

    def on_postgres(self) -> tuple[str, Sequence[Any]]:
        raise AssertionError("performed on SQLite alone")


async def test_one_source_among_many_rows_is_kept(database: Database) -> None:
    await add_asset(database, 1, "a")
    given = [*rows(40), *rows(1, 40, source="somewhere"), *rows(200, 41)]
    await database.perform(insert_events(given))
    stored = await events_in(database)
    assert [event.source_run_id for event in stored] == [row.source_run_id for row in given]


async def test_repeats_among_many_rows_are_left_out(database: Database) -> None:
    await add_asset(database, 1, "a")
    await database.perform(insert_events(rows(100, 50)))
    inserted = await database.perform(insert_events([*rows(300), *rows(10)], want_ids=True))
    assert len(inserted.event_ids) == 200
    assert len(await events_in(database)) == 300
