"""Calls a function in the thread of a SQLite connection. `triggerer.store.database.script` compares the costs."""

from __future__ import annotations

import asyncio
import math
import sqlite3
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import aiosqlite
import anyio
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from triggerer.synchronization import AutoResetEvent

T = TypeVar("T")


async def in_thread(
    session: AsyncSession | AsyncConnection, work: Callable[[sqlite3.Connection], T]
) -> T:
    """Call `work` with the transaction's connection, in the connection's thread; return its result.

    `work` must neither begin nor commit a transaction.

    Raises:
        sqlite3.Error: The driver's error. `Database.transaction` translates it.
    Cancellation: `work` still runs to its end. The transaction's rollback comes afterwards, because
        it needs the same thread.
    """
    connection = await session.connection() if isinstance(session, AsyncSession) else session
    driver: Any = (await connection.get_raw_connection()).driver_connection
    # aiosqlite has no public method that calls a function in its thread. All its public methods use `_execute`.
    result: T = await driver._execute(work, driver._conn)  # noqa: SLF001
    return result


class StillUnderWay(Exception):
    """The call in the thread has not ended in time, and continues."""


async def finish_in_thread(
    connection: aiosqlite.Connection, work: Callable[[sqlite3.Connection], T], *, seconds: float
) -> T:
    """Call `work` in the connection's thread, and wait for its outcome even if the caller is cancelled.

    `work` is a whole transaction, with its own BEGIN and COMMIT. A caller that did not wait could not know whether the
    transaction commits.

    Raises:
        StillUnderWay: `work` has not ended after `seconds`, and continues.
        Exception: The exception that `work` raised.
    Cancellation: Delayed until `work` has ended. If an anyio scope was cancelled, the caller first receives the result,
        and its next `await` raises the cancellation. A cancellation by `Task.cancel` is raised by this function.
    """
    turn = _Turn(asyncio.get_running_loop(), work)
    driver: Any = connection
    connected = driver._conn  # noqa: SLF001 (no public names, as above)
    driver._tx.put_nowait((None, lambda: turn.take(connected)))  # noqa: SLF001
    return await turn.outcome(seconds)


class _Turn(Generic[T]):
    """One call in a connection's thread, and its outcome.

    This is not an `asyncio.Future`, because a future is cancelled together with the task that waits for it.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, work: Callable[[sqlite3.Connection], T]
    ) -> None:
        self._loop = loop
        self._work = work
        self._result: T | None = None
        self._error: BaseException | None = None
        self._ended = AutoResetEvent()

    def take(self, connection: sqlite3.Connection) -> None:
        """Do the work. The connection's thread calls this."""
        try:
            self._result = self._work(connection)
        except BaseException as error:  # noqa: BLE001 (raised in the waiting task)
            self._error = error
        self._loop.call_soon_threadsafe(self._ended.set)

    async def outcome(self, seconds: float) -> T:
        until = self._loop.time() + seconds
        try:
            in_time = await self._ended.wait_for(seconds)
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                in_time = await self._ended.wait_for(until - self._loop.time())
            if anyio.current_effective_deadline() > -math.inf:
                # No cancel scope is cancelled, so the task was cancelled by `Task.cancel`. asyncio raises this
                # CancelledError only once, so raise it again here. (A cancelled scope raises it again at the next
                # await.)
                raise
        if not in_time:
            raise StillUnderWay
        if (error := self._error) is not None:
            try:
                raise error
            finally:
                # Break the reference cycle of the error, its traceback and this frame. Until the next garbage
                # collection, the cycle would keep a cursor alive, and with it SQLite's lock.
                self._error = None
                del error
        return self._result  # type: ignore[return-value]
