"""Stores with tables, on each database that we support."""

from collections.abc import AsyncIterator

import pytest

from tests.store.seeding import FENCE, add_asset, add_stream
from triggerer.store.database.opening import open_database
from triggerer.store.database.transactions import Database
from triggerer.store.schema.models import Trigger


@pytest.fixture
async def database(store_url: str) -> AsyncIterator[Database]:
    """An open database at the newest revision, empty."""
    async with open_database(store_url) as opened:
        yield opened


@pytest.fixture
async def sqlite(sqlite_url: str) -> AsyncIterator[Database]:
    """Open a database on SQLite only."""
    async with open_database(sqlite_url) as opened:
        yield opened


@pytest.fixture
async def postgres(postgres_url: str) -> AsyncIterator[Database]:
    """Open a database on PostgreSQL only."""
    async with open_database(postgres_url) as opened:
        yield opened


@pytest.fixture
async def watched(database: Database) -> Database:
    """A database with the asset `orders`, and with a trigger whose stream is leased under `FENCE`."""
    await add_stream(database)
    await add_asset(database, 1, "orders")
    async with database.transaction() as session:
        session.add(
            Trigger(id=1, digest="t", classpath="x.Y", kwargs={}, stream_digest=FENCE.stream_digest)
        )
    return database
