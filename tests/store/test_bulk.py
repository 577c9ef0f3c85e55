"""Many asset events in few statements, whatever their number."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.store.seeding import add_asset, add_dag, asset_json, events_in, queue_of
from triggerer.store.bulk import EventRow, insert_events
from triggerer.store.database import Database

THEN = datetime(2026, 1, 1, tzinfo=UTC)


def rows(count: int, first: int = 0, *, source: str | None = None) -> list[EventRow]:
    return [
        EventRow(1, f'{{"n": {n}}}', THEN, 7, f"k{n}", n % 3, source, source, source)
        for n in range(first, first + count)
    ]


# SQLite takes 150, 16 and 1 at a time, or 100 where there are sources.
@pytest.mark.parametrize("count", [1, 15, 16, 17, 149, 150, 151, 167, 301, 1_000])
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
