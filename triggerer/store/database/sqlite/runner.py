"""Performs a script on SQLite: a whole transaction in one call in the connection's thread."""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from typing import TypeVar

import aiosqlite

from triggerer.errors import OutcomeUnknown
from triggerer.store.database.clock import Now
from triggerer.store.database.driver_errors import translate_commit, translated
from triggerer.store.database.engines import SQLITE_WRITER_PRAGMAS
from triggerer.store.database.script import (
    Row,
    Script,
    ScriptRunner,
    Step,
    perform_on_sqlite,
    single_step,
)
from triggerer.store.database.sqlite.connections import SqliteConnections
from triggerer.store.database.sqlite.file import SqliteFile
from triggerer.store.database.sqlite.thread import StillUnderWay, finish_in_thread
from triggerer.store.database.wakeups.signals import Announced

T = TypeVar("T")


class _CommitFailed(Exception):
    """COMMIT failed; `__cause__` is SQLite's error."""


class _RollbackFailed(Exception):
    """The rollback failed, so the transaction is still open; `__cause__` is the error before the rollback."""


class SqliteRunner(ScriptRunner):
    """Performs scripts on one connection. The caller must keep other tasks of this process from writing meanwhile."""

    def __init__(
        self,
        path: str,
        *,
        name: str,
        file: SqliteFile,
        now: Now,
        busy_timeout: timedelta,
        commit_timeout: timedelta,
        connections: SqliteConnections,
    ) -> None:
        self._path = path
        self._name = name
        self._file = file
        self._now = now
        self._busy_timeout = busy_timeout
        self._commit_timeout = commit_timeout
        self._connections = connections
        self._connection: aiosqlite.Connection | None = None

    async def perform(self, script: Script[T], announced: Announced) -> T:
        with translated(self._name):
            self._file.check()
            connection = self._connection or await self._open()
        seconds = self._commit_timeout.total_seconds()
        collected: list[Announced] = []
        try:
            with translated(self._name):
                # Wait even if cancelled: the thread cannot be interrupted, and the caller must learn the outcome.
                result = await finish_in_thread(
                    connection,
                    lambda sqlite: self._transact(sqlite, script, collected),
                    seconds=seconds,
                )
            # Check the file in the event loop's thread. In the database's thread, the check would
            # release Python's global lock, and wait until the event loop releases the lock.
            self._file.check_committed()
            return result
        except StillUnderWay as error:
            self._drop()
            raise OutcomeUnknown(
                f"{self._name} did not confirm a commit within {seconds:g} s"
            ) from error
        except _CommitFailed as failed:
            self._drop()
            cause = failed.__cause__
            assert isinstance(cause, sqlite3.Error)
            raise translate_commit(cause, self._name) from cause
        except _RollbackFailed as failed:
            # Closing the connection undoes the open transaction.
            self._drop()
            with translated(self._name):
                raise failed.__cause__ or failed from None
        finally:
            for one in collected:
                announced.update(one)

    async def perform_step(self, step: Step) -> list[Row]:
        return await self.perform(single_step(step), {})

    def _transact(
        self, connection: sqlite3.Connection, script: Script[T], collected: list[Announced]
    ) -> T:
        """Perform a script in a transaction. Called in the connection's thread.

        The script's announcements are added to `collected` as one item, at the end of the script. A caller that stopped
        waiting may read `collected` at any time, so an item must never change.
        """
        announced: Announced = {}
        connection.execute("BEGIN IMMEDIATE")
        before = connection.total_changes
        try:
            result = perform_on_sqlite(connection, script, self._now, announced)
        except BaseException as error:
            try:
                connection.rollback()
            except sqlite3.Error:
                raise _RollbackFailed from error
            raise
        collected.append(announced)
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise _CommitFailed from error
        self.has_written = connection.total_changes != before
        return result

    async def _open(self) -> aiosqlite.Connection:
        self._connection = await self._connections.open(
            self._path,
            pragmas=SQLITE_WRITER_PRAGMAS,
            isolation_level=None,
            timeout=self._busy_timeout.total_seconds(),
        )
        return self._connection

    def _drop(self) -> None:
        """Ask the connection to end, without waiting for its thread. The next script opens another connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.stop()

    async def aclose(self) -> None:
        self._drop()
        await self._connections.ended()
