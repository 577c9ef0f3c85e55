"""Several statements of a SQLite transaction in one turn of its connection's thread.

Each statement that goes through SQLAlchemy and aiosqlite costs some 0.3 ms of the event loop's time, a
turn of the thread 0.07 ms whatever it does (tests/benchmarks/store_bench.py). Scripts take this way
(`triggerer.store.engine.script`); all others are written as everywhere.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

import aiosqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

T = TypeVar("T")


async def in_thread(
    session: AsyncSession | AsyncConnection, work: Callable[[sqlite3.Connection], T]
) -> T:
    """Call `work` with the transaction's own connection, in that connection's thread; return what it returns.

    `work` neither begins nor commits. `session` is a session's or an engine's on SQLite.

    Raises:
        sqlite3.Error: As the driver says it; `Database.transaction` translates it.
    Cancellation: `work` runs to its end in the thread; what follows on the connection, a rollback say,
        comes after it.
    """
    connection = await session.connection() if isinstance(session, AsyncSession) else session
    driver: Any = (await connection.get_raw_connection()).driver_connection
    return await call_in_thread(driver, work)


async def call_in_thread(
    connection: aiosqlite.Connection, work: Callable[[sqlite3.Connection], T]
) -> T:
    """The same with a connection of aiosqlite's own."""
    driver: Any = connection
    # It has no public name for "call this in your thread"; all of its own methods use this one.
    result: T = await driver._execute(work, driver._conn)  # noqa: SLF001
    return result
