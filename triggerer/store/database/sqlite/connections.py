"""Opens SQLite's connections, and waits for the ends of their threads."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import aiosqlite

from triggerer.errors import StoreUnavailable


class SqliteConnections:
    """Opens connections, each with a thread of its own, and waits for the threads when the database is closed.

    A thread cannot be cancelled. If the task that uses a connection is cancelled, the thread is asked to end. The
    thread then finishes its current work, rolls back and closes the connection.
    """

    def __init__(self) -> None:
        self._ending: set[asyncio.Future[Any]] = set()

    async def open(
        self, path: str, *, pragmas: Sequence[str], **options: Any
    ) -> aiosqlite.Connection:
        """Open a connection.

        Args:
            pragmas: Texts that follow `PRAGMA`, such as `synchronous=FULL`. They are set before `open` returns.
            options: Further arguments of `sqlite3.connect`.
        Raises:
            sqlite3.Error: The connection cannot be opened. Neither a connection nor a thread is left behind.
            StoreUnavailable: The process cannot start a thread. Neither a connection nor a thread is left behind.
        """

        def connect() -> sqlite3.Connection:
            connection: sqlite3.Connection = sqlite3.connect(path, **options)
            try:
                for pragma in pragmas:
                    with closing(connection.execute(f"PRAGMA {pragma}")) as cursor:
                        cursor.fetchall()
            except BaseException:
                connection.close()
                raise
            return connection

        connection = _Connection(connect, self._ending)
        # A daemon thread, so that a statement that hangs on a dead disk does not keep the process alive.
        connection._thread.daemon = True  # noqa: SLF001 - as SQLAlchemy does; there is no public name
        try:
            await connection
        except RuntimeError as error:
            connection.forget_thread()
            raise StoreUnavailable(
                f"no connection to the SQLite database {path} can be opened: {error}",
                hint="this user, or its container, has reached its limit of processes and threads",
            ) from error
        return connection

    async def ended(self) -> None:
        """Wait until all threads that were asked to end have ended."""
        while self._ending:
            await asyncio.wait(self._ending)


class _Connection(aiosqlite.Connection):
    """A connection whose `stop` adds a future to the set `ending`. The thread's end completes the future."""

    def __init__(self, connector: Any, ending: set[asyncio.Future[Any]]) -> None:
        super().__init__(connector, iter_chunk_size=64)
        self._all_ending = ending
        self._is_stopped = False
        self._ended: asyncio.Future[Any] | None = None

    def stop(self) -> asyncio.Future[Any] | None:
        """Ask the thread to end after its current work; return a future for the end.

        The result is None if the thread was never started, or if no event loop is running.
        """
        # Ask only once. After the first request to end, the thread processes no other request.
        if not self._is_stopped:
            self._is_stopped = True
            self._tx.put_nowait((None, self._roll_back))
            self._ended = super().stop()
            if self._ended is not None:
                self._all_ending.add(self._ended)
                self._ended.add_done_callback(self._all_ending.discard)
        return self._ended

    def forget_thread(self) -> None:
        """Make `stop` do nothing, because the thread could not be started."""
        self._is_stopped = True

    def _roll_back(self) -> None:
        # Roll back before closing. Otherwise SQLite's lock could outlive the connection. The traceback of a cancelled
        # task keeps the cursor of an unfinished statement alive, and the cursor keeps the lock.
        if self._connection is not None:
            self._connection.rollback()

    def __del__(self) -> None:
        # If a task is cancelled while SQLAlchemy sets up a connection, SQLAlchemy drops the connection and does not
        # close it.
        self.stop()
