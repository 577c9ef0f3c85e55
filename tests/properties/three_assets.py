"""Databases with three assets and two aliases. Each example begins with a copy of one."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.store.seeding import add_alias, add_asset
from triggerer.store.database.opening import open_database

THREE = ("a", "b", "c")
ALIASES = ("x", "y")


async def add_assets(url: str) -> None:
    """Add the assets, with the ids 1 to 3, and the aliases, with 1 and 2."""
    async with open_database(url) as database:
        for number, name in enumerate(THREE, 1):
            await add_asset(database, number, name)
        for number, name in enumerate(ALIASES, 1):
            await add_alias(database, number, name)


def fresh_copy(template: Path) -> str:
    """Copy a SQLite file over the previous copy; return the URL of the copy."""
    file = template.with_name("example.sqlite")
    for suffix in ("", "-wal", "-shm"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)
    shutil.copy(template, file)
    return f"sqlite+aiosqlite:///{file}"
