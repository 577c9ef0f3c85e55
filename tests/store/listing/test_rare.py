"""On each database, the cost of a list depends on the rows that it shows, not on the rows that it leaves out."""

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, update
from sqlalchemy.ext.asyncio import AsyncSession

from tests.services.databases.stores import create_migrated_database, create_migrated_file
from tests.services.process import run_apart
from tests.store.explaining import working
from tests.store.seeding import add_asset, add_dag, asset_json
from triggerer.store.database.opening import open_database
from triggerer.store.database.transactions import Database
from triggerer.store.events.listing import list_asset_events
from triggerer.store.listing.overview import read_overview
from triggerer.store.runs.listing import list_runs
from triggerer.store.schema.models import QueuedAssetEvent

TAKEN, SILENT = 40_000, 20_000
RUNS = TAKEN // 10

# Events 1 to TAKEN belong to the asset `often`, except 11, 22 and 33, which belong to `rare`. Each run took ten of
# these events. The later events belong to `silent`, for which no DAG waits.
_NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
_ASSET = f"""CASE WHEN i > {TAKEN} THEN 3 WHEN i IN (11, 22, 33) THEN 2 ELSE 1 END"""
_RUN = """
INSERT INTO dag_run (id, dag_id, run_id, run_type, state, run_after, queued_at, params, attempt, cancel_requested)
SELECT i, 'takes', i, 'manual', 'success', '2026-01-01', '2026-01-01', '{{}}', 0, false FROM n"""
_EVENT = f"""
INSERT INTO asset_event (id, asset_id, extra, timestamp, watcher_id, idempotency_key, ordinal)
SELECT i, {_ASSET}, '{{{{}}}}', '2026-01-01', 0, i, 0 FROM n"""
_ENTRY = f"""
INSERT INTO queued_asset_event (dag_id, asset_event_id, asset_id, run_pk)
SELECT 'takes', i, {_ASSET}, (i + 9) / 10 FROM n"""


async def seed(database: Database) -> None:
    for asset_id, name in enumerate(("often", "rare", "silent"), 1):
        await add_asset(database, asset_id, name)
    await add_dag(database, "takes", asset_json("often"), assets=[1, 2])
    await add_dag(database, "idle", None)
    async with database.transaction() as session:
        connection = await session.connection()
        for statement, count in ((_RUN, RUNS), (_EVENT, TAKEN + SILENT), (_ENTRY, TAKEN)):
            sql = (_NUMBERS + statement).format(count=count)
            if connection.dialect.name == "postgresql":
                for quoted, kind in (("'2026-01-01'", "timestamptz"), ("'{}'", "jsonb")):
                    sql = sql.replace(quoted, f"{quoted}::{kind}")
                sql = sql.replace(" 0, i, 0", " 0, i::text, 0").replace(
                    "'takes', i, 'm", "'takes', i::text, 'm"
                )
            await connection.exec_driver_sql(sql)
        await connection.exec_driver_sql(
            "ANALYZE" if connection.dialect.name == "postgresql" else "SELECT 1"
        )


async def _seed_at(url: str) -> None:
    async with open_database(url) as database:
        await seed(database)


@pytest.fixture(
    scope="module",
    params=[
        "sqlite",
        pytest.param("postgresql", marks=[pytest.mark.services, pytest.mark.postgresql]),
    ],
)
def seeded_url(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The URL of a store with all the rows, which the module's tests only read."""
    if request.param == "sqlite":
        templates: Path = request.getfixturevalue("_templates")
        url = create_migrated_file(tmp_path_factory.mktemp("rare") / "store.sqlite", templates)
        run_apart(_seed_at(url))
        yield url
        return
    server = request.getfixturevalue("postgres_server")
    name = f"rare_{uuid.uuid4().hex[:12]}"
    url = create_migrated_database(server, name)
    run_apart(_seed_at(url))
    yield url
    server.drop_database(name)


@pytest.fixture
async def seeded(seeded_url: str) -> AsyncIterator[Database]:
    async with open_database(seeded_url) as database:
        yield database


Query = Callable[[AsyncSession], Awaitable[list[Any]]]


@pytest.mark.parametrize(
    ("ask", "ids", "bound"),
    [
        (lambda s: list_runs(s, asset="rare"), ["4", "3", "2"], 200),
        (lambda s: list_runs(s, asset="rare", dag="takes", limit=2), ["4", "3"], 200),
        (lambda s: list_runs(s, asset="often", limit=2), [f"{RUNS}", f"{RUNS - 1}"], 200),
        (lambda s: list_asset_events(s, asset="rare", state="consumed"), [33, 22, 11], 200),
        (lambda s: list_asset_events(s, asset="rare", state="unused"), [], 200),
        (lambda s: list_asset_events(s, state="consumed", limit=2), [TAKEN, TAKEN - 1], 10_000),
        (lambda s: list_asset_events(s, state="unused", limit=1), [TAKEN + SILENT], 10_000),
    ],
)
async def test_the_cost_of_finding_few_rows_does_not_grow_with_the_others(
    seeded: Database, ask: Query, ids: list[Any], bound: int
) -> None:
    async with seeded.reading() as session:
        connection = await session.connection()
        async with working(connection) as work:
            found = await ask(session)
        assert [getattr(row, "run_id", None) or row.id for row in found] == ids
        assert work.done < bound


async def test_the_overview_does_not_read_runs_that_have_ended(sqlite: Database) -> None:
    await seed(sqlite)
    async with sqlite.reading() as session:
        async with working(await session.connection()) as work:
            assert (await read_overview(session)).waiting_runs == []
        assert work.done < 20


async def test_runs_of_an_asset_are_newest_first_though_its_events_are_not(
    database: Database,
) -> None:
    await seed(database)
    late = RUNS - 1
    async with database.transaction() as session:
        moved = update(QueuedAssetEvent).where(QueuedAssetEvent.asset_event_id == 11)
        await session.execute(moved.values(run_pk=late))
    async with database.reading() as session:

        async def ids(asset: str, limit: int, state: str | None = None) -> list[int]:
            found = await list_runs(session, asset=asset, limit=limit, state=state)
            return [int(run.run_id) for run in found]

        assert await ids("rare", 0) == [late, 4, 3]
        assert await ids("rare", 2) == [late, 4]
        assert await ids("rare", 0, "failed") == []
        assert await ids("often", 0) == list(range(RUNS, 0, -1))
        assert await ids("often", 150) == list(range(RUNS, RUNS - 150, -1))
        assert await ids("silent", 0) == []
        assert await ids("unknown", 0) == []


async def test_events_of_one_asset_have_the_states_that_the_full_list_shows(
    database: Database,
) -> None:
    await seed(database)
    waiting, unused = {22, 5_000, 39_999}, {33, 7_001, 20_000}
    entries = QueuedAssetEvent.asset_event_id
    async with database.transaction() as session:
        await session.execute(
            update(QueuedAssetEvent).where(entries.in_(waiting)).values(run_pk=None)
        )
        await session.execute(delete(QueuedAssetEvent).where(entries.in_(unused)))
    async with database.reading() as session:

        async def ids(state: str, asset: str | None = None, limit: int = 0) -> list[int]:
            found = await list_asset_events(session, state=state, asset=asset, limit=limit)
            return [row.id for row in found]

        never = list(range(TAKEN + SILENT, TAKEN, -1))
        assert await ids("unused") == never + sorted(unused, reverse=True)
        assert await ids("queued") == sorted(waiting, reverse=True)
        taken = [i for i in range(TAKEN, 0, -1) if i not in waiting | unused]
        assert await ids("consumed") == taken
        assert await ids("consumed", limit=3) == taken[:3]
        assert await ids("consumed", "rare") == [11]
        assert await ids("unused", "rare") == [33]
        assert await ids("unused", "often") == sorted(unused - {33}, reverse=True)
        assert await ids("consumed", "often") == [i for i in taken if i != 11]
        assert await ids("consumed", "silent") == []
        assert await ids("unused", "silent", limit=2) == never[:2]
