"""Pages of the events that a run's tasks read, on each database."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import pytest
from sqlalchemy import Connection, event, insert, text, update
from sqlalchemy.ext.asyncio import AsyncSession

from tests.store.seeding import NOW, add_alias, add_asset, add_dag, asset_json, emit
from triggerer.store.database.transactions import Database
from triggerer.store.events import run_events
from triggerer.store.events.run_events import Page, count_events, last_event
from triggerer.store.schema.models import AssetAliasMember, AssetEvent, DagRun, QueuedAssetEvent

RUN = 7


async def seed(database: Database) -> tuple[list[int], list[int]]:
    """Add one run with events of two assets, alternately. One alias has both assets. Return each asset's event ids."""
    await add_alias(database, 1, "both")
    for asset_id, name in ((1, "a"), (2, "b"), (3, "none")):
        await add_asset(database, asset_id, name)
    await add_dag(database, "on_a", asset_json("a"), assets=[1, 2])
    async with database.transaction() as session:
        session.add(
            DagRun(
                id=RUN,
                dag_id="on_a",
                run_id="r",
                run_type="manual",
                state="success",
                run_after=NOW,
                queued_at=NOW,
            )
        )
        for asset_id in (1, 2):
            session.add(AssetAliasMember(alias_id=1, asset_id=asset_id))
    ids: dict[int, list[int]] = {1: [], 2: []}
    for _ in range(6):
        for asset_id, its in ids.items():
            its += await emit(database, asset_id)
    async with database.transaction() as session:
        await session.execute(update(QueuedAssetEvent).values(run_pk=RUN))
    return ids[1], ids[2]


def page(
    last_id: int, *, back: bool = False, beyond: int | None = None, skip: int = 0, limit: int = 100
) -> Page:
    return Page(last_id, newest_first=back, beyond=beyond, skip=skip, limit=limit)


async def test_a_page_begins_after_an_event_in_either_order(database: Database) -> None:
    of_a, of_b = await seed(database)
    both = sorted(of_a + of_b)
    last = of_a[4]
    async with database.reading() as session:

        async def of_run(wanted: Page) -> list[int]:
            rows = await run_events.page_of_run(session, wanted, run_pk=RUN, uri="x-test://a")
            return [row["id"] for row in rows]

        async def of_asset(wanted: Page) -> list[int]:
            rows = await run_events.page_of_asset(session, wanted, uri="x-test://a")
            return [row["id"] for row in rows]

        async def of_alias(wanted: Page) -> list[int]:
            rows = await run_events.page_of_asset(session, wanted, alias="both")
            return [row["id"] for row in rows]

        for ask, every in ((of_run, of_a), (of_asset, of_a), (of_alias, both)):
            ids = [one for one in every if one <= last]
            assert await ask(page(last)) == ids
            assert await ask(page(last, back=True)) == ids[::-1]
            assert await ask(page(last, limit=2)) == ids[:2]
            assert await ask(page(last, back=True, limit=2)) == ids[::-1][:2]
            assert await ask(page(last, beyond=ids[1], limit=2)) == ids[2:4]
            assert await ask(page(last, back=True, beyond=ids[-2], limit=2)) == ids[::-1][2:4]
            assert await ask(page(last, beyond=ids[0], skip=2, limit=1)) == ids[3:4]
            assert await ask(page(last, back=True, skip=3, limit=2)) == ids[::-1][3:5]
            assert await ask(page(last, skip=len(ids))) == []
            assert await ask(page(last, beyond=last)) == []
        assert await run_events.page_of_asset(session, page(last), uri="x-test://none") == []
        assert await run_events.page_of_asset(session, page(last), uri="x-test://unknown") == []


async def test_triggering_events_of_a_run_are_counted_by_asset(database: Database) -> None:
    of_a, of_b = await seed(database)
    async with database.reading() as session:
        found = await run_events.triggering_assets(session, RUN)
        assert [(one.name, one.total, one.last_id) for one in found] == [
            ("a", 6, of_a[-1]),
            ("b", 6, of_b[-1]),
        ]
        assert await run_events.triggering_assets(session, RUN + 1) == []


async def test_counting_ends_at_the_last_event(database: Database) -> None:
    of_a, of_b = await seed(database)
    async with database.reading() as session:
        assert await last_event(session, uri="x-test://a") == of_a[-1]
        assert await last_event(session, alias="both") == of_b[-1]
        assert await last_event(session, uri="x-test://none") == 0
        assert await last_event(session, alias="unknown") == 0
        assert await count_events(session, last_id=of_a[-1], uri="x-test://a") == 6
        assert await count_events(session, last_id=of_a[2], alias="both") == 5
        assert await count_events(session, last_id=0, uri="x-test://none") == 0


async def test_an_alias_of_very_many_assets_is_read_in_order_too(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_a, of_b = await seed(database)
    monkeypatch.setattr(run_events, "_ASSETS_MERGED", 1)
    async with database.reading() as session:
        rows = await run_events.page_of_asset(
            session, page(of_b[-1], skip=1, limit=3), alias="both"
        )
        assert [row["id"] for row in rows] == sorted(of_a + of_b)[1:4]


async def test_a_page_says_all_of_an_event_and_passes_its_extra_on_as_text(
    database: Database,
) -> None:
    await seed(database)
    async with database.transaction() as session:
        await session.execute(update(AssetEvent).values(extra={"n": [1, None, "ä"]}))
    async with database.reading() as session:
        last_id = await last_event(session, uri="x-test://a")
        wanted = page(last_id, back=True, limit=1)
        (row,) = await run_events.page_of_asset(session, wanted, uri="x-test://a")
        assert row == (await run_events.page_of_run(session, wanted, run_pk=RUN, uri="x-test://a"))[
            0
        ] | {"extra": row["extra"]}
    read = orjson.loads(orjson.dumps(row))
    assert read.pop("timestamp")
    assert read == {
        "id": last_id,
        "asset_name": "a",
        "asset_uri": "x-test://a",
        "source_watcher": None,
        "source_dag": None,
        "source_run_id": None,
        "source_task": None,
        "partition_key": None,
        "extra": {"n": [1, None, "ä"]},
    }


async def test_a_page_of_large_events_ends_early_and_the_next_goes_on(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_a, _ = await seed(database)
    async with database.transaction() as session:
        await session.execute(update(AssetEvent).values(extra={"x": "y" * 1_000}))
    monkeypatch.setattr(run_events, "PAGE_CHARACTERS", 3_000)
    monkeypatch.setattr(run_events, "_READ_AT_ONCE", 1)
    async with database.reading() as session:
        for back, ids in ((False, of_a), (True, of_a[::-1])):
            first = page(of_a[-1], back=back)
            rows = await run_events.page_of_asset(session, first, uri="x-test://a")
            assert [row["id"] for row in rows] == ids[:3]
            # The connection still works, and the next query of the session is answered.
            rest = page(of_a[-1], back=back, beyond=ids[2])
            rows = await run_events.page_of_run(session, rest, run_pk=RUN, uri="x-test://a")
            assert [row["id"] for row in rows] == ids[3:]


@contextmanager
def noting(connection: Connection) -> Iterator[list[tuple[str, Any]]]:
    asked: list[tuple[str, Any]] = []

    def note(_c: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        asked.append((statement, parameters))

    event.listen(connection, "before_cursor_execute", note)
    yield asked
    event.remove(connection, "before_cursor_execute", note)


async def add_history(session: AsyncSession, ids: range) -> None:
    """Events of both assets in turn, each in the run."""
    for start in range(0, len(ids), 1_000):
        some = ids[start : start + 1_000]
        await session.execute(
            insert(AssetEvent),
            [
                {
                    "id": i,
                    "asset_id": 1 + i % 2,
                    "extra": {},
                    "timestamp": NOW,
                    "idempotency_key": f"{i}",
                }
                for i in some
            ],
        )
        await session.execute(
            insert(QueuedAssetEvent),
            [
                {"dag_id": "on_a", "asset_event_id": i, "asset_id": 1 + i % 2, "run_pk": RUN}
                for i in some
            ],
        )


@pytest.mark.parametrize("back", [False, True])
async def test_on_sqlite_a_page_is_read_from_indices_in_order(sqlite: Database, back: bool) -> None:
    await seed(sqlite)
    async with sqlite.reading() as session:
        connection = await session.connection()
        with noting(connection.sync_connection) as asked:  # type: ignore[arg-type]
            last_id = await last_event(session, uri="x-test://a")
            await last_event(session, alias="both")
            wanted = page(last_id, back=back, beyond=last_id - 4, limit=3)
            await run_events.page_of_run(session, wanted, run_pk=RUN, uri="x-test://a")
            await run_events.page_of_asset(session, wanted, uri="x-test://a")
        plans = [
            [
                line[-1]
                for line in await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", values)
            ]
            for sql, values in asked
        ]
    assert len(plans) == 12
    for plan in plans:
        # Only the query for the page's rows joins the watchers. This query must not sort, so that it can stop after the
        # page's last row.
        if "USE TEMP B-TREE FOR ORDER BY" in plan:
            assert not any("watcher" in line for line in plan), plan
        for line in plan:
            if "asset_event" in line:
                # An index search must be limited by a range of ids, by one row's id, or (for the newest event) by the
                # asset. Otherwise it could read many rows and then drop most of them.
                assert line.startswith("SEARCH"), plan
                assert line.endswith(("id<?)", "(rowid=?)", " (asset_id=?)")), plan


async def test_on_postgres_a_page_in_the_middle_reads_only_its_own_rows(
    postgres: Database,
) -> None:
    await seed(postgres)
    async with postgres.transaction() as session:
        await add_history(session, range(1_000, 41_000))
    async with postgres.transaction() as session:
        await session.execute(text("ANALYZE"))
    async with postgres.reading() as session:
        connection = await session.connection()
        with noting(connection.sync_connection) as asked:  # type: ignore[arg-type]
            for back in (False, True):
                wanted = page(40_999, back=back, beyond=20_000, limit=10)
                await run_events.page_of_run(session, wanted, run_pk=RUN, uri="x-test://a")
                await run_events.page_of_asset(session, wanted, uri="x-test://a")
                await run_events.page_of_asset(session, wanted, alias="both")
            await last_event(session, alias="both")
        for sql, values in asked:
            (plan,) = await connection.exec_driver_sql(
                f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", values
            )
            for rows in _rows_read(plan[0][0]["Plan"]):
                assert rows <= 20, plan


def _rows_read(plan: dict[str, Any]) -> Iterator[int]:
    """Yield the rows that each node returned or discarded, in all of its loops."""
    thrown = plan.get("Rows Removed by Filter", 0) + plan.get("Rows Removed by Join Filter", 0)
    yield (plan["Actual Rows"] + thrown) * plan["Actual Loops"]
    for below in plan.get("Plans", ()):
        yield from _rows_read(below)
