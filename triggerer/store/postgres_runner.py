"""A script's transaction on PostgreSQL, straight through asyncpg."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, Final, TypeVar

import anyio
import asyncpg
from sqlalchemy import URL

from triggerer.errors import OutcomeUnknown
from triggerer.logging_setup import LazyLogger
from triggerer.store import relay
from triggerer.store.driver_errors import translate_commit, translated
from triggerer.store.engines import asyncpg_options
from triggerer.store.script import Opening, Row, Script, ScriptRunner, Step, literal, perform_steps
from triggerer.store.wakeups import Announced

_log = LazyLogger(__name__)

ROLLBACK_TIMEOUT: Final = timedelta(seconds=5)
# One each for those who record, schedule, claim and keep books; they do not wait for one another.
_SIZE: Final = 4
# Plans are kept. One that was made when a table was small goes through all of it for as long as nobody has analysed it
# since: without this, a server's time per run grew by a third within the first 1,600 runs. All that is asked here has
# its index.
_SETTINGS: Final = "SET enable_seqscan = off"
T = TypeVar("T")


class PostgresRunner(ScriptRunner):
    """A few connections, each opened when all others are in use.

    asyncpg's own pool does more, and costs each transaction a task and a proxy: a quarter of its time.

    Args:
        encode: Makes a NOTIFY's payload of an announcement.
    """

    def __init__(
        self,
        url: URL,
        *,
        name: str,
        commit_timeout: timedelta,
        encode: Callable[[Announced], str],
    ) -> None:
        self._name = name
        self._commit_timeout = commit_timeout
        self._encode = encode
        self._options = asyncpg_options(url)
        self._idle: list[Any] = []
        self._places = anyio.Semaphore(_SIZE, fast_acquire=True)

    async def perform(self, script: Script[T], announced: Announced) -> T:
        async with self._connection() as connection:
            with translated(self._name):
                transaction = _Transaction(connection)
                result = await perform_steps(transaction.answer, script, announced)
            if transaction.has_begun or announced:
                await self._commit(connection, announced)
        return result

    async def once(self, step: Step) -> list[Row]:
        statement, arguments = step.on_postgres()
        async with self._connection() as connection:
            with self._until_committed(connection):
                rows: list[Row] = await connection.fetch(statement, *arguments)
        return rows

    async def _commit(self, connection: Any, announced: Announced) -> None:
        statement = "COMMIT"
        if announced:
            # Inside the transaction, and in the same round trip: PostgreSQL delivers on commit, and
            # never otherwise.
            payload = literal(self._encode(announced))
            statement = f"NOTIFY {relay.CHANNEL}, {payload}; COMMIT"
        with self._until_committed(connection):
            await connection.execute(statement)

    @contextmanager
    def _until_committed(self, connection: Any) -> Iterator[None]:
        """Around what commits: shielded up to the deadline, and its errors judged as a commit's."""
        seconds = self._commit_timeout.total_seconds()
        with anyio.move_on_after(seconds, shield=True) as scope:
            try:
                yield
            except Exception as error:
                raise translate_commit(error, self._name) from error
        if scope.cancelled_caught:
            connection.terminate()
            raise OutcomeUnknown(f"{self._name} did not confirm a commit within {seconds:g} s")

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        async with self._places:
            with translated(self._name):
                connection = self._take_idle() or await self._connect()
            try:
                yield connection
            except BaseException:
                # Whatever is known of it: a BEGIN that was cancelled on its way may have begun, and
                # what the next user takes for committed would not be.
                if not connection.is_closed():
                    await self._roll_back(connection)
                raise
            finally:
                if not connection.is_closed():
                    self._idle.append(connection)

    async def _connect(self) -> Any:
        connection = await asyncpg.connect(**self._options)
        try:
            await connection.execute(_SETTINGS)
        except BaseException:
            connection.terminate()
            raise
        return connection

    def _take_idle(self) -> Any:
        """A connection that is open as far as is known; None: there is none."""
        while self._idle:
            # The last one used: the others may be closed by whatever ends idle connections.
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return None

    async def _roll_back(self, connection: Any) -> None:
        """Roll back what is open, or drop the connection where that fails."""
        seconds = ROLLBACK_TIMEOUT.total_seconds()
        with anyio.move_on_after(seconds, shield=True):
            try:
                await connection.execute("ROLLBACK")
            except Exception as error:  # noqa: BLE001 (see below)
                # The transaction's own error is what the caller has to know. The server undoes the
                # work of a connection that has gone.
                _log.warning("a connection was dropped", database=self._name, error=str(error))
            else:
                return
        connection.terminate()

    async def aclose(self) -> None:
        for connection in self._idle:
            connection.terminate()
        self._idle.clear()


class _Transaction:
    """Begins with the first step."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.has_begun = False

    async def answer(self, step: Step) -> list[Row]:
        if not self.has_begun:
            self.has_begun = True
            if isinstance(step, Opening):
                await self._connection.execute(f"BEGIN; {step.with_begin()}")
                return []
            await self._connection.execute("BEGIN")
        statement, arguments = step.on_postgres()
        rows: list[Row] = await self._connection.fetch(statement, *arguments)
        return rows
