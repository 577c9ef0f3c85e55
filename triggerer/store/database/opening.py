"""Opens a database: makes the connections that its URL describes, and checks that it answers."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

import anyio
from sqlalchemy import URL

from triggerer.errors import ConfigurationError, TriggererError
from triggerer.store.database import engines
from triggerer.store.database.clock import Now, utc_now
from triggerer.store.database.driver_errors import translated
from triggerer.store.database.script import ScriptRunner
from triggerer.store.database.sqlite.connections import SqliteConnections
from triggerer.store.database.sqlite.file import SqliteFile
from triggerer.store.database.sqlite.runner import SqliteRunner
from triggerer.store.database.transactions import CLOSE_TIMEOUT, Database
from triggerer.store.database.urls import describe, parse_database_url
from triggerer.store.database.wakeups.signals import Wakeups
from triggerer.store.database.wakeups.transport import AnnouncementTransport

COMMIT_TIMEOUT: Final = timedelta(seconds=30)


@asynccontextmanager
async def open_database(
    url: str | URL,
    *,
    home: Path | None = None,
    create: bool = True,
    wakeups: Wakeups | None = None,
    commit_timeout: timedelta = COMMIT_TIMEOUT,
    busy_timeout: timedelta = engines.SQLITE_BUSY_TIMEOUT,
    pool_size: int = engines.POSTGRES_POOL_SIZE,
    now: Now = utc_now,
) -> AsyncIterator[Database]:
    """Open a database, and check that it answers. `triggerer.store.schema.migrate` creates its tables.

    Args:
        home: The folder to which a relative SQLite path is relative. None: the working directory.
        create: True to create a missing SQLite file with its folder.
        wakeups: The wake-ups that the database publishes to. None: new ones.
        commit_timeout: How long to wait for a commit. After that its outcome is unknown.
        busy_timeout: How long a SQLite write waits for a writer in another process.
        pool_size: The number of PostgreSQL connections in the pool. Under load the pool opens up to this number of
            further connections.
        now: The clock of a SQLite database. PostgreSQL has its own clock.
    Raises:
        ConfigurationError: The URL has a wrong form, or names a database or a file that cannot be used.
        StoreRefused: The database refuses the login, or the login lacks a right. Or the server has no such database.
        StoreUnavailable: The database does not answer now.
    """
    parsed = parse_database_url(
        url if isinstance(url, str) else url.render_as_string(hide_password=False), home=home
    )
    name, transport = describe(parsed), AnnouncementTransport(parsed)
    connections = SqliteConnections()
    runner: ScriptRunner
    file = primary = None
    if parsed.get_backend_name() == "sqlite":
        path = Path(parsed.database or "")
        _prepare_file(path, create=create)
        with translated(name):
            file = SqliteFile(path, name=name)
        writer = engines.sqlite_writer(parsed, busy_timeout=busy_timeout, connections=connections)
        reader = engines.sqlite_reader(parsed, busy_timeout=busy_timeout, connections=connections)
        runner = SqliteRunner(
            parsed.database or "",
            name=name,
            file=file,
            now=now,
            busy_timeout=busy_timeout,
            commit_timeout=commit_timeout,
            connections=connections,
        )
    else:
        # Imported here, because a command on SQLite does not need asyncpg.
        from triggerer.store.database.postgres.primary import Primary
        from triggerer.store.database.postgres.runner import PostgresRunner

        primary = Primary(parsed, name=name)
        writer = reader = engines.postgres_engine(primary, pool_size=pool_size)
        runner = PostgresRunner(
            primary, name=name, commit_timeout=commit_timeout, encode=transport.encode
        )
    database = Database(
        parsed,
        writer=writer,
        reader=reader,
        runner=runner,
        file=file,
        primary=primary,
        transport=transport,
        wakeups=wakeups or Wakeups(),
        commit_timeout=commit_timeout,
        now=now,
    )
    try:
        await _probe(database)
        yield database
    finally:
        with anyio.move_on_after(CLOSE_TIMEOUT.total_seconds(), shield=True):
            await runner.aclose()
            await writer.dispose()
            if reader is not writer:
                await reader.dispose()
            await connections.ended()


async def _probe(database: Database) -> None:
    try:
        await database.check_connection()
    except TriggererError:
        raise
    except TypeError as error:
        # The URL has an option that the driver's connect() does not know.
        raise ConfigurationError(
            f"{database.name} cannot be opened: {error}", hint="correct the options in the URL"
        ) from error


def _prepare_file(path: Path, *, create: bool) -> None:
    try:
        if path.exists():
            return
    except OSError as error:
        raise ConfigurationError(
            f"the database {path} cannot be read: {error.strerror}",
            hint="may this user look into its folder? See [database] url and [core] home",
        ) from error
    if not create:
        raise ConfigurationError(
            f"there is no database at {path}",
            hint="start `triggerer standalone`, or run `triggerer db migrate`",
        )
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Mode 0600, because the file contains messages. SQLite gives its other files (-wal, -shm) the same mode.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise ConfigurationError(
            f"the database {path} cannot be created: {error.strerror}",
            hint="correct [database] url or [core] home",
        ) from error
