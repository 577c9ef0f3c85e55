"""SQLite's connections: how each is opened, and that its thread is waited for when it ends."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import aiosqlite

from triggerer.errors import StoreUnavailable


class SqliteConnections:
    """The connections of one database, until their threads have ended.

    A thread cannot be cancelled: it finishes what it does, then rolls back and closes. Whoever is cancelled
    only orders that, wherever it was: while it opened the connection, while SQLAlchemy set it up, or in a
    statement. Whoever closes the database waits for it.
    """

    def __init__(self) -> None:
        self._ending: set[asyncio.Future[Any]] = set()

    async def open(
        self, path: str, *, pragmas: Sequence[str], **options: Any
    ) -> aiosqlite.Connection:
        """Open a connection.

        Args:
            pragmas: As in `PRAGMA ...`; set before anybody sees the connection.
            options: As of `sqlite3.connect`.
        Raises:
            sqlite3.Error: It cannot be opened; nothing of it is left.
            StoreUnavailable: The same, for want of a thread.
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
        # A statement that hangs, on a dead disk, does not keep the process from its end.
        connection._thread.daemon = True  # noqa: SLF001 - as SQLAlchemy does; there is no public name
        try:
            await connection
        except RuntimeError as error:
            connection.forget_thread()
            raise StoreUnavailable(
                f"no connection to the SQLite database {path} can be opened: {error}",
                hint="this user, or its container, has as many processes and threads as it may have",
            ) from error
        return connection

    async def ended(self) -> None:
        """Return once the threads that were told to end have ended."""
        while self._ending:
            await asyncio.wait(self._ending)


class _Connection(aiosqlite.Connection):
    """Tells the future of its thread's end, whoever ends it; the base class keeps it to itself."""

    def __init__(self, connector: Any, ending: set[asyncio.Future[Any]]) -> None:
        super().__init__(connector, iter_chunk_size=64)
        self._all_ending = ending
        self._is_stopped = False
        self._ended: asyncio.Future[Any] | None = None

    def stop(self) -> asyncio.Future[Any] | None:
        """Tell the thread to end after what it is doing; the future is done once it has."""
        # It takes nothing from its queue after the first stop.
        if not self._is_stopped:
            self._is_stopped = True
            self._tx.put_nowait((None, self._roll_back))
            self._ended = super().stop()
            if self._ended is not None:
                self._all_ending.add(self._ended)
                self._ended.add_done_callback(self._all_ending.discard)
        return self._ended

    def forget_thread(self) -> None:
        """Wait for no end of a thread that was never started."""
        self._is_stopped = True

    def _roll_back(self) -> None:
        # While the cursor of a statement that was not read to its end is alive, as it is in the traceback of who was
        # cancelled there, a connection that is closed keeps its lock.
        if self._connection is not None:
            self._connection.rollback()

    def __del__(self) -> None:
        # SQLAlchemy lets go of a connection, and does not close it, where it was cancelled while it set it up.
        self.stop()
