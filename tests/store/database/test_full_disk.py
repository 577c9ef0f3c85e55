"""On SQLite, an outage of writes lasts until a transaction has written something."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from tests.store.seeding import add_asset
from triggerer.errors import StoreUnavailable
from triggerer.store.database.availability import Use
from triggerer.store.database.script import Script
from triggerer.store.database.statement import Statement
from triggerer.store.database.transactions import Database


def rename(name: str) -> Script[None]:
    yield Statement(f"UPDATE asset SET uri = 'x-other' WHERE name = '{name}'")()


async def in_session(database: Database, name: str) -> None:
    async with database.transaction() as session:
        await session.execute(text("UPDATE asset SET uri = 'x-other' WHERE name = :n"), {"n": name})


async def in_script(database: Database, name: str) -> None:
    await database.perform(rename(name))


@pytest.mark.parametrize("change", [in_session, in_script])
async def test_a_transaction_that_writes_nothing_does_not_end_an_outage(
    sqlite: Database, change: object
) -> None:
    """A transaction without writes succeeds even on a full disk. An earlier version took this for the outage's end."""
    await add_asset(sqlite, 1, "orders")
    sqlite.availability.record_failure(Use.WRITES, StoreUnavailable("disk full"))
    await change(sqlite, "unknown")  # type: ignore[operator]
    assert "refused writes" in (sqlite.availability.trouble or "")
    await change(sqlite, "orders")  # type: ignore[operator]
    assert sqlite.availability.trouble is None
