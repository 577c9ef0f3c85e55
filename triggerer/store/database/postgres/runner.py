"""Performs scripts on PostgreSQL, directly through asyncpg."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, Final, TypeVar

import anyio

from triggerer.errors import OutcomeUnknown
from triggerer.observability.logging_setup import LazyLogger
from triggerer.store.database.driver_errors import committing, translated
from triggerer.store.database.postgres.primary import Primary
from triggerer.store.database.script import (
    Opening,
    Row,
    Script,
    ScriptRunner,
    Step,
    literal,
    perform_stepwise,
)
from triggerer.store.database.wakeups import transport
from triggerer.store.database.wakeups.signals import Announced

_log = LazyLogger(__name__)

ROLLBACK_TIMEOUT: Final = timedelta(seconds=5)
# Four connections: for recording events, scheduling, claiming runs and writing results, so that none of these waits for
# another.
_SIZE: Final = 4
# `enable_seqscan = off`: the server must use indexes. Otherwise the server would plan to scan a table while the table
# is small, and keep this plan until the table is analysed.
# `force_generic_plan`: the server plans each statement once, for all values. Planning the scheduler's query each time
# took three times as long as executing it.
_SETTINGS: Final = "SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan"
T = TypeVar("T")


class PostgresRunner(ScriptRunner):
    """Performs scripts on at most four connections, each opened when it is first needed.

    asyncpg's pool is not used. The pool would create a task and a proxy object for each transaction, which take a
    quarter of the transaction's time.

    Args:
        encode: Encodes an announcement as the payload of NOTIFY.
    """

    def __init__(
        self,
        primary: Primary,
        *,
        name: str,
        commit_timeout: timedelta,
        encode: Callable[[Announced], str],
    ) -> None:
        self._name = name
        self._commit_timeout = commit_timeout
        self._encode = encode
        self._primary = primary
        self._idle: list[Any] = []
        self._limiter = anyio.Semaphore(_SIZE, fast_acquire=True)

    async def perform(self, script: Script[T], announced: Announced) -> T:
        async with self._connection() as connection:
            with translated(self._name):
                transaction = _Transaction(connection)
                result = await perform_stepwise(transaction.perform_step, script, announced)
            if transaction.has_begun or announced:
                await self._commit(connection, announced)
        return result

    async def perform_step(self, step: Step) -> list[Row]:
        statement, arguments = step.on_postgres()
        async with self._connection() as connection:
            with self._committing(connection):
                rows: list[Row] = await connection.fetch(statement, *arguments)
        return rows

    async def _commit(self, connection: Any, announced: Announced) -> None:
        statement = "COMMIT"
        if announced:
            # NOTIFY is sent in one round trip with COMMIT, inside the transaction. PostgreSQL delivers the notification
            # only if the transaction commits.
            payload = literal(self._encode(announced))
            statement = f"NOTIFY {transport.CHANNEL}, {payload}; COMMIT"
        with self._committing(connection):
            await connection.execute(statement)

    @contextmanager
    def _committing(self, connection: Any) -> Iterator[None]:
        try:
            with committing(self._name, self._commit_timeout):
                yield
        except OutcomeUnknown:
            connection.terminate()
            raise

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        async with self._limiter:
            with translated(self._name):
                connection = self._take_idle() or await self._connect()
            try:
                yield connection
            except BaseException:
                # Roll back even if BEGIN was cancelled, because the server may have executed BEGIN.
                # Without a rollback, the next user of the connection would work inside this
                # transaction.
                if not connection.is_closed():
                    await self._roll_back(connection)
                raise
            finally:
                if not connection.is_closed():
                    self._idle.append(connection)

    async def _connect(self) -> Any:
        connection = await self._primary.connect()
        try:
            await connection.execute(_SETTINGS)
        except BaseException:
            connection.terminate()
            raise
        return connection

    def _take_idle(self) -> Any:
        """Return an idle, open connection to the current primary, or None."""
        while self._idle:
            # Take the connection that was used last. A firewall may have cut connections that were idle for longer.
            connection = self._idle.pop()
            if self._primary.is_current(connection):
                if not connection.is_closed():
                    return connection
            else:
                connection.terminate()
        return None

    async def _roll_back(self, connection: Any) -> None:
        """Roll back an open transaction, or drop the connection if that fails."""
        seconds = ROLLBACK_TIMEOUT.total_seconds()
        with anyio.move_on_after(seconds, shield=True):
            try:
                await connection.execute("ROLLBACK")
            except Exception as error:  # noqa: BLE001 (see below)
                # Do not raise: the caller needs the transaction's own error, not the error of the rollback. The server
                # rolls back when the connection is dropped.
                _log.warning("a connection was dropped", database=self._name, error=str(error))
            else:
                return
        connection.terminate()

    async def aclose(self) -> None:
        for connection in self._idle:
            connection.terminate()
        self._idle.clear()


class _Transaction:
    """A transaction that begins at its first step, so that a script without steps takes no round trip."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.has_begun = False

    async def perform_step(self, step: Step) -> list[Row]:
        if not self.has_begun:
            self.has_begun = True
            if isinstance(step, Opening):
                await self._connection.execute(f"BEGIN; {step.with_begin()}")
                return []
            await self._connection.execute("BEGIN")
        statement, arguments = step.on_postgres()
        rows: list[Row] = await self._connection.fetch(statement, *arguments)
        return rows
