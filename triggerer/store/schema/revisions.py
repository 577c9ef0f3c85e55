"""Reads the revision of the tables, and refuses tables that this release can neither use nor upgrade."""

from __future__ import annotations

import re
from typing import Final

from sqlalchemy import inspect, text
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.errors import ConfigurationError
from triggerer.store.database.transactions import Database
from triggerer.store.schema.compatibility import refuse_if_too_old
from triggerer.store.schema.migrations import Migrations, is_revision, number

# Before release 0.1.0, the revision of a migration script was only a number of four digits.
_UNRELEASED: Final = re.compile(r"\d{4}")


async def read_revision(session: AsyncSession) -> str | None:
    """Return the revision of the tables, or None if there are none."""
    connection = await session.connection()
    if not await connection.run_sync(lambda sync: inspect(sync).has_table("alembic_version")):
        return None
    revision: str | None = await session.scalar(text("SELECT version_num FROM alembic_version"))
    return revision


async def read_usable_revision(database: Database, migrations: Migrations) -> str | None:
    """Check that a release with these migrations can use or upgrade the tables; return their revision, or None.

    The result is None if there are no tables.

    Raises:
        ConfigurationError: The release can neither use nor upgrade the tables.
        StoreUnavailable: As for `Database.reading`.
    """
    async with database.reading() as session:
        revision = await read_revision(session)
        if revision is None:
            return None
        _refuse_foreign(database.name, revision, migrations)
        await refuse_if_too_old(session, database.name, migrations)
    return revision


def _refuse_foreign(name: str, revision: str, migrations: Migrations) -> None:
    if _UNRELEASED.fullmatch(revision):
        raise ConfigurationError(
            f"the tables of {name} were made by a checkout before release 0.1.0"
            f" (revision {revision}), and cannot be upgraded",
            hint="use a new database, or delete this one",
        )
    is_newer = is_revision(revision) and number(revision) > number(migrations.newest)
    if not is_newer and revision not in migrations.revisions:
        raise ConfigurationError(
            f"the tables of {name} are at revision {revision}, which no release of triggerer has",
            hint="does [database] url name the right database?",
        )
