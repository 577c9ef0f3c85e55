"""Databases with tables and without rows. Each is a copy of a migrated template."""

import shutil
from functools import cache
from pathlib import Path

from tests.services.databases.postgres import PostgresServer
from tests.services.process import run_apart
from triggerer.store.database.opening import open_database
from triggerer.store.schema.migrate import upgrade

_TEMPLATE = "migrated"


def create_migrated_database(server: PostgresServer, name: str) -> str:
    """Make a PostgreSQL database at the newest revision; return its URL."""
    return server.create_database(name, template=_postgres_template(server))


def create_migrated_file(path: Path, templates: Path) -> str:
    """Make a SQLite file at the newest revision; return its URL.

    Args:
        templates: A folder for the template. It must exist until the test session ends.
    """
    shutil.copyfile(_sqlite_template(templates), path)
    return sqlite_url(path)


def sqlite_url(path: Path) -> str:
    """SQLAlchemy's URL of a SQLite file."""
    return f"sqlite+aiosqlite:///{path}"


@cache
def _postgres_template(server: PostgresServer) -> str:
    _migrate(server.create_database(_TEMPLATE))
    return _TEMPLATE


@cache
def _sqlite_template(folder: Path) -> Path:
    path = folder / f"{_TEMPLATE}.sqlite"
    # The migration closes the database, so no write-ahead log is left. The file alone is the whole database.
    _migrate(sqlite_url(path))
    return path


def _migrate(url: str) -> None:
    async def migrate() -> None:
        async with open_database(url) as database:
            await upgrade(database)

    run_apart(migrate())
