"""Brings the database's tables to this release, and says where they stand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, inspect, text
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.errors import ConfigurationError
from triggerer.logging_setup import LazyLogger
from triggerer.store.database import Database
from triggerer.store.migrations import HEAD

if TYPE_CHECKING:
    from alembic.config import Config

_log = LazyLogger(__name__)

# Any number that is ours: two services that start together upgrade one after the other.
_ADVISORY_LOCK: Final = 0x7269_6767


async def current(database: Database) -> str | None:
    """The revision of the database's tables; None if it has none of ours.

    Raises:
        StoreUnavailable: As `Database.reading`.
    """
    async with database.reading() as session:
        return await _revision(session)


async def check(database: Database) -> None:
    """Return if the tables are those of this release.

    Raises:
        ConfigurationError: They are older, or newer; the hint says what to do.
        StoreUnavailable: As `Database.reading`.
    """
    revision = await current(database)
    if revision == HEAD:
        return
    if revision is None:
        raise ConfigurationError(
            f"{database.name} has no tables yet", hint="run `triggerer db migrate`"
        )
    _refuse_newer(database, revision)
    raise ConfigurationError(
        f"the tables of {database.name} are at revision {revision}, this release needs {HEAD}",
        hint="run `triggerer db migrate`",
    )


async def upgrade(database: Database) -> bool:
    """Bring the tables to this release's revision; True if there was something to do.

    Everything happens in one transaction: a failed upgrade changes nothing. Nothing to do costs one
    short query, and Alembic is not even imported.

    Raises:
        ConfigurationError: The tables are those of a newer release.
        StoreUnavailable, OutcomeUnknown: As `Database.transaction`; a repeat is safe.
    """
    if await current(database) == HEAD:
        return False
    async with database.transaction() as session:
        if database.dialect == "postgresql":
            await session.execute(
                text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK}
            )
        before = await _revision(session)
        if before == HEAD:
            return False
        if before is not None:
            _refuse_newer(database, before)
        connection = await session.connection()
        await connection.run_sync(_run_scripts)
    _log.info("the database was upgraded", database=database.name, before=before, now=HEAD)
    return True


async def _revision(session: AsyncSession) -> str | None:
    connection = await session.connection()
    if not await connection.run_sync(lambda sync: inspect(sync).has_table("alembic_version")):
        return None
    revision: str | None = await session.scalar(text("SELECT version_num FROM alembic_version"))
    return revision


def _refuse_newer(database: Database, revision: str) -> None:
    if revision > HEAD:
        raise ConfigurationError(
            f"the tables of {database.name} are at revision {revision}, newer than this release's "
            f"{HEAD}",
            hint="install the release that made them, or a newer one",
        )


def _run_scripts(connection: Connection) -> None:
    from alembic import command

    config = configuration()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def configuration() -> Config:
    """Alembic's configuration, which has no file of its own."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    return config
