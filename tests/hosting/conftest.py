"""Fixtures of the tests of the host."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.streams.streams import Upstream
from triggerer.store.database.opening import open_database
from triggerer.store.database.transactions import Database


@pytest.fixture
async def database(store_url: str) -> AsyncIterator[Database]:
    """An open database at the newest revision, empty: once on SQLite, once on PostgreSQL."""
    async with open_database(store_url) as opened:
        yield opened


@pytest.fixture
def upstream(request: pytest.FixtureRequest) -> Upstream:
    """Return the upstream of the test's streams."""
    return Upstream(request.node.name)
