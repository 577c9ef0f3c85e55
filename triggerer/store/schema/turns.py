"""Lets one process at a time migrate a PostgreSQL database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from triggerer.observability.logging_setup import LazyLogger
from triggerer.store.database.driver_errors import translated
from triggerer.store.database.engines import postgres_autocommit_engine
from triggerer.store.database.transactions import CLOSE_TIMEOUT, Database

_log = LazyLogger(__name__)

# The number is arbitrary, and unique in the database.
_LOCK: Final = 0x7269_6767
_ASK_AGAIN_S: Final = 0.3
_TRY: Final = text("SELECT pg_try_advisory_lock(:key)")


@asynccontextmanager
async def turn(database: Database) -> AsyncIterator[AsyncConnection]:
    """Wait until no other process migrates this database. Other processes wait while the `async with` block runs.

    The turn is a lock of this process's database session. If the process dies, the server releases the lock.

    Yields a connection outside of any transaction, without a time limit for its statements.

    Raises:
        StoreUnavailable: As for `Database.transaction`.
    """
    assert database.primary is not None
    engine = postgres_autocommit_engine(database.primary)
    try:
        with translated(database.name):
            async with engine.connect() as connection:
                await _wait_for_turn(connection, database.name)
                yield connection
    finally:
        # The engine has no pool, so closing the connection has ended the session and released the lock.
        with anyio.move_on_after(CLOSE_TIMEOUT.total_seconds(), shield=True):
            await engine.dispose()


async def _wait_for_turn(connection: AsyncConnection, name: str) -> None:
    # Poll for the lock, because a statement that waits for the lock could cause a deadlock. The process with the lock
    # may execute CREATE INDEX CONCURRENTLY, which waits for the running statements of other sessions.
    has_said = False
    while not await connection.scalar(_TRY, {"key": _LOCK}):
        if not has_said:
            has_said = True
            _log.info("waiting, because another process upgrades the database", database=name)
        await anyio.sleep(_ASK_AGAIN_S)
