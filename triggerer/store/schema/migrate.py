"""Upgrades the database's tables to this release, and checks their revision."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, inspect, text
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.errors import ConfigurationError
from triggerer.observability.logging_setup import LazyLogger
from triggerer.store.database.transactions import Database
from triggerer.store.schema.migrations import HEAD

if TYPE_CHECKING:
    from alembic.config import Config

_log = LazyLogger(__name__)

# Two services that start together upgrade one after the other under this lock. The number is arbitrary, and unique in
# the database.
_ADVISORY_LOCK: Final = 0x7269_6767
# Before release 0.1.0, the revision of a migration script was only a number of four digits.
_UNRELEASED: Final = re.compile(r"\d{4}")


async def current(database: Database) -> str | None:
    """Return the revision of the tables, or None if the database has no tables of the service.

    Raises:
        StoreUnavailable: As for `Database.reading`.
    """
    async with database.reading() as session:
        return await _revision(session)


async def check(database: Database) -> None:
    """Check that the tables are at this release's revision.

    Raises:
        ConfigurationError: The tables are older or newer. The hint says what to do.
        StoreUnavailable: As for `Database.reading`.
    """
    revision = await current(database)
    if revision == HEAD:
        return
    if revision is None:
        raise ConfigurationError(
            f"{database.name} has no tables yet", hint="run `triggerer db migrate`"
        )
    _refuse_foreign(database, revision)
    raise ConfigurationError(
        f"the tables of {database.name} are at revision {revision}, this release needs {HEAD}",
        hint="run `triggerer db migrate`",
    )


OnUpgrade = Callable[[AsyncSession, str | None], Awaitable[None]]
"""Called in the transaction of an upgrade, with the session and the former revision. None: there were no tables."""


async def upgrade(database: Database, on_upgrade: OnUpgrade | None = None) -> bool:
    """Upgrade the tables to this release's revision; return False if the tables have this revision already.

    The upgrade is one transaction, so a failed upgrade changes nothing. If there is nothing to do, this call costs one
    short query and does not import Alembic.

    Raises:
        ConfigurationError: The tables belong to a newer release, or the database's encoding lacks some characters.
        StoreUnavailable, OutcomeUnknown: As for `Database.transaction`. A second try is safe.
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
            _refuse_foreign(database, before)
        elif database.dialect == "postgresql":
            _refuse_narrow(database, await session.scalar(text("SHOW server_encoding")))
        connection = await session.connection()
        await connection.run_sync(_run_scripts)
        if on_upgrade is not None:
            await on_upgrade(session, before)
    _log.info("the database was upgraded", database=database.name, before=before, now=HEAD)
    return True


async def _revision(session: AsyncSession) -> str | None:
    connection = await session.connection()
    if not await connection.run_sync(lambda sync: inspect(sync).has_table("alembic_version")):
        return None
    revision: str | None = await session.scalar(text("SELECT version_num FROM alembic_version"))
    return revision


def _refuse_narrow(database: Database, encoding: str | None) -> None:
    # If one DAG's description had a character that the encoding lacks, no DAG of the whole folder could be stored.
    if encoding not in {"UTF8", "SQL_ASCII"}:
        raise ConfigurationError(
            f"{database.name} has the encoding {encoding}, which lacks some characters",
            hint="CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0",
        )


def _refuse_foreign(database: Database, revision: str) -> None:
    """Refuse tables that this release can neither use nor upgrade."""
    if _UNRELEASED.fullmatch(revision):
        raise ConfigurationError(
            f"the tables of {database.name} were made by a checkout before release 0.1.0"
            f" (revision {revision}), and cannot be upgraded",
            hint="use a new database, or delete this one",
        )
    if revision > HEAD:
        raise ConfigurationError(
            f"the tables of {database.name} are at revision {revision}, newer than this release's "
            f"{HEAD}",
            hint="install the release that created them, or a newer one",
        )


def _run_scripts(connection: Connection) -> None:
    from alembic import command

    config = configuration()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def configuration() -> Config:
    """Return Alembic's configuration. There is no alembic.ini."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    return config
