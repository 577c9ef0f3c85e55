"""Stores with tables, on each database that we support."""

from collections.abc import AsyncIterator

import pytest

from triggerer.store.engine.database import Database
from triggerer.store.engine.opening import open_database


@pytest.fixture
async def database(store_url: str) -> AsyncIterator[Database]:
    """An open database at the newest revision, empty."""
    async with open_database(store_url) as opened:
        yield opened


@pytest.fixture
async def sqlite(sqlite_url: str) -> AsyncIterator[Database]:
    """The same on SQLite only."""
    async with open_database(sqlite_url) as opened:
        yield opened


@pytest.fixture
async def postgres(postgres_url: str) -> AsyncIterator[Database]:
    """The same on PostgreSQL only."""
    async with open_database(postgres_url) as opened:
        yield opened
