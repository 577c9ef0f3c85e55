"""Lists in pages: a cursor continues where the page before ended, and counts stop at a bound."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from tests.actors import TESTER
from tests.store.seeding import NOW, add_asset, add_dag, add_stream
from triggerer.errors import CursorRefused
from triggerer.operations.pausing import pause_dag, unpause_dag
from triggerer.store.database.transactions import Database
from triggerer.store.listing import paging
from triggerer.store.listing.pages import (
    ASSET_EVENTS,
    ASSETS,
    AUDIT,
    BACKFILLS,
    DAGS,
    LISTINGS,
    PARKED,
    QUEUED,
    RUNS,
    STREAMS,
    TASKS,
    WATCHERS,
)
from triggerer.store.listing.paging import Count, Listing, decode_cursor, encode_cursor
from triggerer.store.schema.models import (
    AssetEvent,
    Backfill,
    DagPartitionEvent,
    DagRun,
    ParkedBody,
    ParkedMessage,
    QueuedAssetEvent,
    TaskRun,
    Trigger,
    Watcher,
)

# The sort rules of languages order these names differently than their bytes.
NAMES = ("a", "B", "a_b", "ab", "ä", "z")
FILTERS: dict[str, dict[str, Any]] = {"tasks": {"dag": "a", "run_id": "r0"}}


@pytest.fixture
async def filled(database: Database) -> Database:
    """A database with several rows of every list."""
    await add_stream(database)
    for number, name in enumerate(NAMES, 1):
        await add_asset(database, number, name)
        await add_dag(database, name, None)
    async with database.transaction() as session:
        session.add(Trigger(id=1, digest="t", classpath="x.Y", kwargs={}, stream_digest="stream"))
        await session.flush()
        for number in range(1, 7):
            event = AssetEvent(asset_id=1 + number % 2, extra={}, timestamp=NOW)
            event.idempotency_key, event.watcher_id, event.ordinal = f"k{number}", 0, 0
            session.add(event)
            run = DagRun(
                dag_id="a" if number % 2 else "z", run_id=f"r{number - 1}", run_type="manual"
            )
            run.state, run.run_after, run.queued_at = "success", NOW, NOW
            session.add(run)
            session.add(
                Watcher(
                    id=number,
                    asset_id=1 + number % 3,
                    name=NAMES[number - 1],
                    trigger_id=1,
                    path="f.py",
                    updated_at=NOW,
                )
            )
            session.add(
                Backfill(
                    dag_id="a",
                    from_date=NOW,
                    to_date=NOW,
                    reprocess="none",
                    max_active=1,
                    created_at=NOW,
                )
            )
            await session.flush()
            started = None if number > 3 else NOW + timedelta(seconds=number // 2)
            session.add(
                TaskRun(run_pk=1, task_id=f"t{9 - number}", state="success", started_at=started)
            )
            session.add(
                QueuedAssetEvent(dag_id=NAMES[number % 2], asset_event_id=number, asset_id=1)
            )
            for key in ("ä", "z", "B"):
                session.add(
                    DagPartitionEvent(
                        dag_id=NAMES[number % 4],
                        partition_key=key,
                        asset_event_id=number,
                        asset_id=1,
                    )
                )
            session.add(
                ParkedBody(
                    id=number,
                    stream_digest="stream",
                    idempotency_key=f"k{number}",
                    data=b"x",
                    size_bytes=1,
                )
            )
            await session.flush()
            session.add(
                ParkedMessage(
                    watcher_id=number, body_id=number, lane="0", idempotency_key=f"k{number}",
                    state="set_aside", failures=1, parked_at=NOW,
                )
            )  # fmt: skip
        for _ in range(3):
            await pause_dag(session, TESTER, "a")
            await unpause_dag(session, TESTER, "a")
    return database


async def walk(database: Database, listing: Listing[Any], limit: int, **filters: Any) -> list[Any]:
    """Read a list page by page, each in a transaction of its own."""
    found: list[Any] = []
    cursor = None
    while True:
        async with database.reading() as session:
            page = await listing.page(session, limit=limit, after=cursor, **filters)
        assert len(page.items) <= limit
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            return found
        assert page.items


async def test_pages_of_any_size_together_are_the_whole_list(filled: Database) -> None:
    for listing in LISTINGS:
        filters = FILTERS.get(listing.name, {})
        whole = await walk(filled, listing, 1_000, **filters)
        # All watchers of these rows share one stream.
        assert len(whole) >= (1 if listing is STREAMS else 6)
        for limit in {1, 2, 3, max(1, len(whole) - 1), len(whole)}:
            assert await walk(filled, listing, limit, **filters) == whole, (listing.name, limit)
        async with filled.reading() as session:
            page = await listing.page(session, limit=1, with_count=True, **filters)
        assert page.count == Count(len(whole), is_counted_short=False)


FILTERED: list[tuple[Listing[Any], dict[str, Any], int]] = [
    (ASSET_EVENTS, {"asset": "a"}, 3),
    (ASSET_EVENTS, {"state": "unused"}, 0),
    (ASSET_EVENTS, {"state": "queued"}, 6),
    (RUNS, {"dag": "a"}, 3),
    (RUNS, {"state": "success"}, 6),
    (RUNS, {"asset": "a"}, 0),
    (WATCHERS, {"asset": "B"}, 2),
    (WATCHERS, {"state": "waiting"}, 6),
    (PARKED, {"watcher": "ä"}, 1),
    (QUEUED, {"dag": "B"}, 9),
    (DAGS, {"state": "active"}, 6),
    (ASSETS, {"state": "undeclared"}, 6),
    (BACKFILLS, {"state": "done"}, 6),
    (AUDIT, {"action": "dag.pause"}, 3),
]


async def test_filters_hold_on_every_page_and_in_the_count(filled: Database) -> None:
    for listing, filters, number in FILTERED:
        assert len(await walk(filled, listing, 2, **filters)) == number
        async with filled.reading() as session:
            page = await listing.page(session, limit=1, with_count=True, **filters)
        assert page.count == Count(number, is_counted_short=False)


async def test_rows_that_come_and_go_between_two_pages_shift_nothing(filled: Database) -> None:
    async with filled.reading() as session:
        first = await RUNS.page(session, limit=3)
        whole = await RUNS.page(session)
    async with filled.transaction() as session:
        newest = await session.scalar(select(DagRun).order_by(DagRun.id.desc()).limit(1))
        await session.delete(newest)
        run = DagRun(dag_id="a", run_id="new", run_type="manual", state="success")
        run.run_after = run.queued_at = NOW
        session.add(run)
    async with filled.reading() as session:
        second = await RUNS.page(session, limit=3, after=first.next_cursor)
    assert first.items + second.items == whole.items


async def test_a_count_stops_at_its_bound(
    filled: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paging, "MOST_COUNTED", 4)
    async with filled.reading() as session:
        page = await ASSET_EVENTS.page(session, limit=1, with_count=True)
    assert page.count is not None
    assert (page.count.value, page.count.is_counted_short) == (4, True)


async def test_a_cursor_of_another_list_or_of_other_filters_is_refused(filled: Database) -> None:
    async with filled.reading() as session:
        cursor = (await RUNS.page(session, limit=1, dag="a")).next_cursor
        others: list[tuple[Listing[Any], dict[str, Any]]] = [
            (RUNS, {}),
            (RUNS, {"dag": "z"}),
            (ASSET_EVENTS, {"dag": "a"}),
        ]
        for listing, filters in others:
            with pytest.raises(CursorRefused, match="other filters"):
                await listing.page(session, after=cursor, **filters)
        # Neither a filter that is None nor the limit counts as a filter.
        await RUNS.page(session, limit=2, after=cursor, dag="a", state=None)


async def test_a_forged_cursor_is_refused(filled: Database) -> None:
    forged: tuple[Any, ...] = (
        None,
        7,
        [],
        ["7"],
        [1.5],
        [True],
        [2**63],
        [1, 2],
        {"a": 1},
        [[1]],
        ["\0"],
    )
    async with filled.reading() as session:
        for key in forged:
            for listing in (RUNS, TASKS):
                filters = FILTERS.get(listing.name, {})
                cursor = encode_cursor(listing.name, filters, key)
                with pytest.raises(CursorRefused):
                    await listing.page(session, after=cursor, **filters)


@pytest.mark.parametrize("cursor", ["", "x", "é", "AAAA", "e30", "W10", "MQ==", "W1tbW1s" * 999])
def test_a_malformed_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(CursorRefused, match="malformed"):
        decode_cursor(cursor, "runs", {})
