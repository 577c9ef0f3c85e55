"""Fixtures for the properties of scheduling."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from tests.properties.set_clocks import let_clock_be_set
from tests.properties.three_assets import add_assets


@pytest.fixture
def template(sqlite_url: str) -> Path:
    """A SQLite database with the assets and the aliases."""
    anyio.run(add_assets, sqlite_url)
    return Path(sqlite_url.partition(":///")[2])


@pytest.fixture
def seeded_postgres_url(postgres_url: str) -> str:
    """A PostgreSQL database with the assets and the aliases."""
    anyio.run(add_assets, postgres_url)
    return postgres_url


@pytest.fixture
def clocked_postgres_url(seeded_postgres_url: str) -> str:
    """A PostgreSQL database with the assets, the aliases, and a clock that can be set."""
    anyio.run(let_clock_be_set, seeded_postgres_url)
    return seeded_postgres_url
