"""What the properties of scheduling have in common."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from tests.properties.two_assets import add_both


@pytest.fixture
def template(sqlite_url: str) -> Path:
    """A database with both assets."""
    anyio.run(add_both, sqlite_url)
    return Path(sqlite_url.partition(":///")[2])


@pytest.fixture
def seeded_postgres_url(postgres_url: str) -> str:
    """Another."""
    anyio.run(add_both, postgres_url)
    return postgres_url
