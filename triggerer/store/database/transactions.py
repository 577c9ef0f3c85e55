"""Runs transactions on the database, with SQLAlchemy sessions or with scripts, and translates the drivers' errors."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast

import anyio
from sqlalchemy import URL, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from triggerer.errors import OutcomeUnknown, RowRefused, StoreUnavailable
from triggerer.observability.logging_setup import LazyLogger
from triggerer.observability.metrics.table import DATABASE_DURATION, UNKNOWN_OUTCOMES
from triggerer.store.database.availability import Availability, Use
from triggerer.store.database.clock import NOW_KEY, Now, now_of
from triggerer.store.database.driver_errors import committing, translated
from triggerer.store.database.script import Row, Script, ScriptRunner, Step, all_steps
from triggerer.store.database.sqlite.file import SqliteFile
from triggerer.store.database.urls import describe
from triggerer.store.database.wakeups.signals import Announced, Wakeups, announced_in
from triggerer.store.database.wakeups.transport import CHANNEL, AnnouncementTransport

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite

    from triggerer.store.database.postgres.primary import Primary
    from triggerer.store.schema.models import Base

_log = LazyLogger(__name__)

CLOSE_TIMEOUT: Final = timedelta(seconds=5)
_COUNTED: Final = "triggerer.counted"
_SCRIPTS, _STEPS, _TRANSACTIONS, _READS = map(
    DATABASE_DURATION.of, ("script", "step", "transaction", "read")
)
T = TypeVar("T")


class StepsRefused(RowRefused):
    """The store refused some of the steps of one `Database.perform_steps`. All other steps are committed.

    Attributes:
        answers: For each step, in the given order: its rows, or the error with which the store refused it.
    """

    def __init__(self, answers: Sequence[list[Row] | RowRefused]) -> None:
        refusals = [answer for answer in answers if isinstance(answer, RowRefused)]
        super().__init__(refusals[0].message, hint=refusals[0].hint)
        self.answers: Final = answers


class Database:
    """Runs transactions on one database. Call `triggerer.store.database.opening.open_database` to get a `Database`."""

    def __init__(
        self,
        url: URL,
        *,
        writer: AsyncEngine,
        reader: AsyncEngine,
        runner: ScriptRunner,
        file: SqliteFile | None,
        primary: Primary | None,
        transport: AnnouncementTransport,
        wakeups: Wakeups,
        commit_timeout: timedelta,
        now: Now,
    ) -> None:
        self.url: Final = url
        self.name: Final = describe(url)
        """The database's name in messages, without the password."""
        self.availability: Final = Availability(self.name)
        self.wakeups: Final = wakeups
        self.writer: Final = writer
        """The writing engine, for tests. Other code calls `transaction`."""
        self.reader: Final = reader
        """The reading engine, for tests. Other code calls `reading`."""
        self.transport: Final = transport
        """Carries announcements to other processes."""
        self.primary: Final = primary
        """Opens further connections to PostgreSQL; None for SQLite."""
        self._runner = runner
        self._file = file
        self._commit_timeout = commit_timeout
        self._now = now
        # SQLite allows one writer at a time. This lock serves the writers of this process in the order of their
        # arrival. SQLite's own waiting polls with sleeps, and serves writers in no particular order.
        self._turn = anyio.Lock(fast_acquire=True) if self.dialect == "sqlite" else None

    @property
    def dialect(self) -> Literal["sqlite", "postgresql"]:
        return "sqlite" if self.url.get_backend_name() == "sqlite" else "postgresql"

    @property
    def path(self) -> Path | None:
        """SQLite's file, or None for PostgreSQL."""
        return Path(self.url.database or "") if self.dialect == "sqlite" else None

    @asynccontextmanager
    async def transaction(
        self, *, commit_timeout: timedelta | None = None
    ) -> AsyncIterator[AsyncSession]:
        """Yield a session whose work is committed when the block ends, and discarded if it raises.

        On SQLite the block has the write lock from its first line to its last. Keep the block short, await only this
        session's calls in it, and never open a second transaction in it.

        Args:
            commit_timeout: How long to wait for the commit. After that its outcome is unknown. None: the timeout given
                to `open_database`.
        Raises:
            StoreUnavailable, Conflict: Nothing was written. Trying again later may succeed.
            StoreRefused: Nothing was written. Trying again may succeed once tables, rights or the login are corrected.
            RowRefused: Nothing was written, and the database would refuse a second try too.
            OutcomeUnknown: The commit was sent, and no answer came.
        Cancellation: Before the commit, nothing is written. The commit itself is shielded, up to its deadline. After a
            commit, a pending cancellation is raised at the caller's next `await`, not when the block is left.
        """
        timeout = self._commit_timeout if commit_timeout is None else commit_timeout
        if self._turn is None:
            async with self._transaction(timeout) as session:
                yield session
        else:
            async with self._turn, self._transaction(timeout) as session:
                yield session

    async def perform(self, script: Script[T]) -> T:
        """Perform a script in a transaction of its own; return its result.

        Raises:
            The errors of `transaction`. An error that the script raises is passed on, and nothing is written.
        Cancellation: As for `transaction`. But on SQLite, a script that has begun runs to its end and is committed.
        """
        announced: Announced = {}
        began = time.monotonic()
        try:
            if self._turn is None:
                result = await self._runner.perform(script, announced)
            else:
                async with self._turn:
                    result = await self._runner.perform(script, announced)
        except (OutcomeUnknown, StoreUnavailable) as error:
            self.availability.record_failure(Use.WRITES, error)
            if isinstance(error, OutcomeUnknown):
                # The transaction may have committed. An unnecessary wake-up does no harm.
                UNKNOWN_OUTCOMES.add()
                await self.announce_here(announced)
            raise
        _SCRIPTS.observe(time.monotonic() - began)
        self._record_success(self._runner.has_written)
        await self.announce_here(announced)
        return result

    async def perform_step(self, step: Step) -> list[Row]:
        """Perform one step in a transaction of its own; return its rows.

        This method announces nothing. If subscribers wait for the change, call `announce_here` afterwards. On
        PostgreSQL the step itself must notify other processes.

        Raises:
            The errors of `transaction`.
        Cancellation: A step that has begun is finished.
        """
        began = time.monotonic()
        try:
            if self._turn is None:
                rows = await self._runner.perform_step(step)
            else:
                async with self._turn:
                    rows = await self._runner.perform_step(step)
        except (OutcomeUnknown, StoreUnavailable) as error:
            if isinstance(error, OutcomeUnknown):
                UNKNOWN_OUTCOMES.add()
            self.availability.record_failure(Use.WRITES, error)
            raise
        _STEPS.observe(time.monotonic() - began)
        self._record_success(self._runner.has_written)
        return rows

    async def perform_steps(self, steps: Sequence[Step]) -> list[list[Row]]:
        """Perform steps that do not depend on one another; return the rows of each step, in the given order.

        On SQLite all steps are one transaction. On PostgreSQL each step is a transaction, because a shared transaction
        would take two more round trips, for BEGIN and COMMIT. Nothing is announced, see `perform_step`.

        Raises:
            StepsRefused: The store refused some of the steps. All other steps are committed.
            The errors of `transaction`. On PostgreSQL the steps before the failed step are committed.
        Cancellation: A step that has begun is finished. On PostgreSQL the later steps are left out.
        """
        if self._turn is not None:
            # If the store refuses one step, nothing is written. Then each step needs a transaction.
            with suppress(RowRefused):
                return await self.perform(all_steps(steps))
        answers: list[list[Row] | RowRefused] = []
        for step in steps:
            try:
                answers.append(await self.perform_step(step))
            except RowRefused as error:
                answers.append(error)
        accepted = [answer for answer in answers if not isinstance(answer, RowRefused)]
        if len(accepted) < len(answers):
            raise StepsRefused(answers)
        return accepted

    @asynccontextmanager
    async def _transaction(self, commit_timeout: timedelta) -> AsyncIterator[AsyncSession]:
        session = self._session(self.writer)
        began = time.monotonic()
        try:
            if self._file is not None:
                self._file.check()
            with translated(self.name):
                # Connect and BEGIN now, so that a locked or absent database raises before the block does any work.
                await session.connection()
                before = await self._count_changed_rows(session)
                yield session
                await session.flush()
                await self._notify(session)
                has_written = before is None or before != await self._count_changed_rows(session)
            try:
                with committing(self.name, commit_timeout):
                    await session.commit()
                if self._file is not None:
                    self._file.check_committed()
            except OutcomeUnknown:
                UNKNOWN_OUTCOMES.add()
                # The transaction may have committed. An unnecessary wake-up does no harm.
                await self.announce_here(announced_in(session))
                raise
        except (OutcomeUnknown, StoreUnavailable) as error:
            self.availability.record_failure(Use.WRITES, error)
            raise
        finally:
            await self._close(session)
        _TRANSACTIONS.observe(time.monotonic() - began)
        self._record_success(has_written)
        for count in session.info.get(_COUNTED, ()):
            count()
        await self.announce_here(announced_in(session))

    def _record_success(self, has_written: bool) -> None:
        """End an outage of writing if rows were written. Only a write shows that a full disk has room again."""
        if has_written:
            self.availability.record_success(Use.WRITES)

    async def _count_changed_rows(self, session: AsyncSession) -> int | None:
        """Return how many rows the connection has changed since it was opened.

        None: the number is not needed, because the database is PostgreSQL, or there is no outage of writing.
        """
        if self.path is None or not self.availability.has_outage(Use.WRITES):
            return None
        connection = await (await session.connection()).get_raw_connection()
        return int(cast("Any", connection.driver_connection).total_changes)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncSession]:
        """Yield a session that cannot write. On SQLite the session does not wait for the writer.

        Raises:
            StoreUnavailable, StoreRefused: As for `transaction`.
        """
        began = time.monotonic()
        try:
            async with self._reading() as session:
                yield session
        except StoreUnavailable as error:
            self.availability.record_failure(Use.READS, error)
            raise
        _READS.observe(time.monotonic() - began)
        self.availability.record_success(Use.READS)

    async def check_connection(self) -> None:
        """Check that the database answers. A failure is not logged, because the caller reports it.

        Raises:
            StoreUnavailable, StoreRefused: As for `transaction`.
        """
        async with self._reading() as session:
            await session.execute(text("SELECT 1 FROM sqlite_master") if self.path else select(1))

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[AsyncSession]:
        session = self._session(self.reader)
        try:
            if self._file is not None:
                self._file.check()
            with translated(self.name):
                options = {"postgresql_readonly": True} if self.dialect == "postgresql" else {}
                await session.connection(execution_options=options)
                yield session
        finally:
            await self._close(session)

    def _session(self, engine: AsyncEngine) -> AsyncSession:
        # `expire_on_commit=False`: ORM rows stay readable after the commit, and SQLAlchemy never reads them again.
        return AsyncSession(engine, expire_on_commit=False, info={NOW_KEY: self._now})

    async def _notify(self, session: AsyncSession) -> None:
        # PostgreSQL delivers a notification that is sent inside a transaction only if the transaction commits.
        if self.dialect == "postgresql" and (announced := announced_in(session)):
            payload = self.transport.encode(announced)
            connection = await session.connection()
            await connection.exec_driver_sql("SELECT pg_notify($1, $2)", (CHANNEL, payload))

    async def _close(self, session: AsyncSession) -> None:
        """Roll back an open transaction and return the connection to the pool. If that fails, drop the connection."""
        seconds = CLOSE_TIMEOUT.total_seconds()
        with anyio.move_on_after(seconds, shield=True) as scope:
            try:
                await session.close()
            except Exception as error:  # noqa: BLE001 (see below)
                # Do not raise this error, because it would replace the outcome of the caller's
                # block. SQLAlchemy has dropped the connection, so the database rolls the
                # transaction back.
                _log.warning("a connection was dropped", database=self.name, error=str(error))
        if scope.cancelled_caught:
            _log.warning("a connection was abandoned", database=self.name, after_s=seconds)

    async def announce_here(self, announced: Announced) -> None:
        """Wake the subscribers in this process. On SQLite, also wake those in a running `triggerer standalone`.

        On PostgreSQL the transaction itself notifies other processes.
        """
        for signal, subjects in announced.items():
            self.wakeups.publish(signal, *subjects)
        await self.transport.send(announced)


def count_on_commit(session: AsyncSession, count: Callable[[], None]) -> None:
    """Call `count` once the session's transaction has committed, so that metrics count no work that is rolled back."""
    session.info.setdefault(_COUNTED, []).append(count)


async def database_now(session: AsyncSession) -> datetime:
    """Return the database's time, which all instances share. A SQLite database uses its host's clock."""
    if session.get_bind().dialect.name == "sqlite":
        return now_of(session)()
    connection = await session.connection()
    now = (await connection.exec_driver_sql("SELECT clock_timestamp()")).scalar_one()
    assert isinstance(now, datetime)
    return now.astimezone(UTC)


def insert_into(session: AsyncSession, table: type[Base]) -> sqlite.Insert | postgresql.Insert:
    """Return an INSERT in the session's dialect. SQLAlchemy's general INSERT has no ON CONFLICT."""
    if session.get_bind().dialect.name == "sqlite":
        from sqlalchemy.dialects import sqlite

        return sqlite.insert(table)
    from sqlalchemy.dialects import postgresql

    return postgresql.insert(table)
