"""PostgreSQL's statistics say that the tables are empty, and then many events arrive."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import delete, insert, text
from sqlalchemy.ext.asyncio import AsyncSession

from tests.store.seeding import add_asset, add_dag
from triggerer.store.database.transactions import Database
from triggerer.store.events.event_pieces import read_pieces
from triggerer.store.events.listing import list_asset_events
from triggerer.store.events.run_events import Page, page_of_asset, page_of_run
from triggerer.store.schema.models import AssetEvent, QueuedAssetEvent

RUN, EVENTS = 7, 3_000
_WORK = text("SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables")


@pytest.fixture
async def misjudged(postgres: Database) -> Database:
    """A database whose statistics were collected while its tables were empty.

    Events with odd ids are in a run, and no event waits in a queue. Every seventh event belongs to the asset `b`, the
    others to the asset `a`.
    """
    await add_asset(postgres, 1, "a")
    await add_asset(postgres, 2, "b")
    await add_dag(postgres, "on_a", None)
    await _add_events(postgres)
    async with postgres.transaction() as session:
        for table in (QueuedAssetEvent, AssetEvent):
            await session.execute(delete(table))
    async with postgres.transaction() as session:
        await session.execute(text("ANALYZE"))
        await session.execute(text("ALTER TABLE asset_event SET (autovacuum_enabled = off)"))
        await session.execute(text("ALTER TABLE queued_asset_event SET (autovacuum_enabled = off)"))
    await _add_events(postgres)
    return postgres


async def _add_events(database: Database) -> None:
    event = {"extra": {}, "timestamp": datetime.now(UTC)}
    events = [
        {**event, "id": n, "asset_id": _asset(n), "idempotency_key": f"{n}"}
        for n in range(1, EVENTS + 1)
    ]
    entry = {"dag_id": "on_a", "run_pk": RUN}
    entries = [
        {**entry, "asset_id": _asset(n), "asset_event_id": n} for n in range(1, EVENTS + 1, 2)
    ]
    async with database.transaction() as session:
        await session.execute(insert(AssetEvent), events)
        await session.execute(insert(QueuedAssetEvent), entries)


def _asset(event_id: int) -> int:
    return 1 if event_id % 7 else 2


OF_A = [n for n in range(1, EVENTS + 1) if n % 7]
TAKEN_OF_A = [n for n in OF_A if n % 2]
PAGE = Page(EVENTS, newest_first=False, beyond=None, skip=0, limit=1_000)


async def _spooled(session: AsyncSession, **of: Any) -> list[int]:
    pieces = read_pieces(session, size=1_000, last_id=EVENTS, uri="x-test://a", **of)
    return [event_id async for ids, *_ in pieces for event_id in ids]


@pytest.mark.parametrize(
    ("read", "ids"),
    [
        (lambda s: page_of_run(s, PAGE, run_pk=RUN, uri="x-test://a"), TAKEN_OF_A[:1_000]),
        (lambda s: page_of_asset(s, PAGE, uri="x-test://a"), OF_A[:1_000]),
        (lambda s: _spooled(s, run_pk=RUN), TAKEN_OF_A),
        (_spooled, OF_A),
        (lambda s: list_asset_events(s, state="consumed", limit=0), range(EVENTS - 1, 0, -2)),
        (lambda s: list_asset_events(s, state="unused", limit=0), range(EVENTS, 0, -2)),
        (lambda s: list_asset_events(s, asset="b", state="unused", limit=0), range(2996, 0, -14)),
        (lambda s: list_asset_events(s, asset="b", state="consumed", limit=1), [2989]),
    ],
)
async def test_reading_many_events_stays_linear(
    misjudged: Database, read: Callable[[AsyncSession], Awaitable[list[Any]]], ids: Sequence[int]
) -> None:
    async with misjudged.reading() as session:
        found = await read(session)
        work = await session.scalar(_WORK)
    assert [_id_of(one) for one in found] == list(ids)
    assert work < 20 * EVENTS


def _id_of(event: Any) -> int:
    if isinstance(event, dict):
        return int(event["id"])
    return event if isinstance(event, int) else int(event.id)
