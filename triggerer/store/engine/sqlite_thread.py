"""Calls a function in the thread of a SQLite connection; see `triggerer.store.engine.script`."""

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
    """Call `work` with the transaction's connection, in the connection's thread; return what it returns.

    `work` neither begins nor commits.

    Raises:
        sqlite3.Error: As the driver raises it; `Database.transaction` translates it.
    Cancellation: `work` runs to its end in the thread. Whatever else is to be done on the connection, such as
        a rollback, comes after it.
    """
    connection = await session.connection() if isinstance(session, AsyncSession) else session
    driver: Any = (await connection.get_raw_connection()).driver_connection
    return await call_in_thread(driver, work)


async def call_in_thread(
    connection: aiosqlite.Connection, work: Callable[[sqlite3.Connection], T]
) -> T:
    """The same with a connection of aiosqlite."""
    driver: Any = connection
    # There is no public name for "call this in your thread"; all of its methods use this one.
    result: T = await driver._execute(work, driver._conn)  # noqa: SLF001
    return result
