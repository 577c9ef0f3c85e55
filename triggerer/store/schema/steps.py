"""Runs the migrations that a database lacks, one after the other.

On PostgreSQL each migration is a transaction of its own, unless it creates or drops indexes CONCURRENTLY. While a
migration waits for the lock on a table, later queries of the table wait behind the migration. So after three seconds
the migration gives up, these queries continue, and the migration is tried again.

On SQLite all migrations are one transaction, because even a short transaction blocks all other writers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

import anyio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from triggerer.errors import ConfigurationError, Conflict, StoreUnavailable
from triggerer.observability.logging_setup import LazyLogger
from triggerer.store.database.driver_errors import translated
from triggerer.store.database.transactions import Database
from triggerer.store.schema.compatibility import require
from triggerer.store.schema.lock_holders import describe_lock_holders
from triggerer.store.schema.migrations import Migrations, number
from triggerer.store.schema.revisions import read_revision
from triggerer.store.schema.scripts import Step, read_steps, run_script
from triggerer.store.schema.turns import turn

_log = LazyLogger(__name__)

OnStep = Callable[[AsyncSession, str | None, str], Awaitable[None]]
"""Called after each migration. The arguments are a session, the previous revision and the new revision.

A previous revision of None means that there were no tables. The session's transaction is the migration's own, unless
the migration ran outside of a transaction.
"""
_Work = Callable[[AsyncSession], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Patience:
    """How a migration waits for locks that other sessions hold."""

    lock_timeout: timedelta = timedelta(seconds=3)
    pause: timedelta = timedelta(seconds=2)
    """How long other queries can use the tables before the next attempt."""
    attempts: int = 24
    """All attempts together take two minutes. If a backup of a large database locks the tables for longer, the
    migration fails, and its error names the backup's session.
    """


class Upgrade:
    """Runs migrations on one database, see `triggerer.store.schema.migrate.upgrade`."""

    def __init__(
        self,
        database: Database,
        migrations: Migrations,
        on_step: OnStep | None,
        *,
        is_alone: bool,
        patience: Patience,
    ) -> None:
        self._database = database
        self._migrations = migrations
        self._on_step = on_step
        self._is_alone = is_alone
        self._patience = patience

    async def run(self, goal: str) -> bool:
        """Run the migrations up to the goal. Return False if another process has run all of them.

        Raises:
            The errors of `triggerer.store.schema.migrate.upgrade`. On PostgreSQL, migrations that completed before the
            error stay.
        """
        if self._database.dialect == "sqlite":
            return await self._run_in_one_transaction(goal)
        async with turn(self._database) as connection:
            return await self._run_one_by_one(connection, goal)

    async def _run_in_one_transaction(self, goal: str) -> bool:
        async with self._database.transaction() as session:
            former = await read_revision(session)
            steps = self._steps(former, goal)
            for step in steps:
                await self._require(session, step)
                await self._run_script(session, step, former)
                former = step.revision
        return bool(steps)

    async def _run_one_by_one(self, connection: AsyncConnection, goal: str) -> bool:
        async with self._database.reading() as session:
            former = await read_revision(session)
        if former is None:
            _refuse_narrow(self._database, await connection.scalar(text("SHOW server_encoding")))
        steps = self._steps(former, goal)
        for step in steps:
            await self._run_step(connection, step, former)
            former = step.revision
        return bool(steps)

    def _steps(self, former: str | None, goal: str) -> list[Step]:
        left = [
            one for one in self._migrations.later_than(former or "") if number(one) <= number(goal)
        ]
        return read_steps(self._migrations, left) if left else []

    async def _run_step(self, connection: AsyncConnection, step: Step, former: str | None) -> None:
        if step.min_revision is not None:
            # Commit the required `min_revision` first, so that no instance of an older release starts while the step
            # runs.
            await self._patiently(connection, step, lambda session: self._require(session, step))
        if not step.is_concurrent:
            await self._patiently(
                connection, step, lambda session: self._run_script(session, step, former)
            )
            return
        with translated(self._database.name):
            await connection.run_sync(run_script, self._migrations, step.revision)
        async with self._database.transaction() as session:
            await self._tell(session, step, former)

    async def _patiently(self, connection: AsyncConnection, step: Step, work: _Work) -> None:
        """Call `work` in a transaction. Repeat this if another session keeps a lock for longer than `lock_timeout`."""
        for attempt in range(1, self._patience.attempts + 1):
            try:
                await self._in_transaction(work)
            except Conflict as error:
                holders = await describe_lock_holders(connection, self._patience.lock_timeout)
                if attempt == self._patience.attempts:
                    raise StoreUnavailable(
                        f"the migration {step.revision} did not get a lock in {attempt} attempts; "
                        f"locks are held by {holders}",
                        hint="let these sessions end, or end them; then run `triggerer db migrate` again",
                    ) from error
                _log.warning(
                    "a migration waits for a lock",
                    migration=step.revision,
                    attempt=attempt,
                    held_by=holders,
                )
            else:
                return
            await anyio.sleep(self._patience.pause.total_seconds())

    async def _in_transaction(self, work: _Work) -> None:
        milliseconds = round(self._patience.lock_timeout.total_seconds() * 1000)
        async with self._database.transaction() as session:
            await session.execute(text(f"SET LOCAL lock_timeout = {milliseconds}"))
            await work(session)

    async def _require(self, session: AsyncSession, step: Step) -> None:
        if step.min_revision is not None:
            await require(session, step.revision, step.min_revision, is_alone=self._is_alone)

    async def _run_script(self, session: AsyncSession, step: Step, former: str | None) -> None:
        connection = await session.connection()
        await connection.run_sync(run_script, self._migrations, step.revision)
        await self._tell(session, step, former)

    async def _tell(self, session: AsyncSession, step: Step, former: str | None) -> None:
        if self._on_step is not None:
            await self._on_step(session, former, step.revision)


def _refuse_narrow(database: Database, encoding: str | None) -> None:
    # All DAGs of the folder are stored in one transaction. One character that the encoding lacks, in the description of
    # one DAG, would make the transaction fail.
    if encoding not in {"UTF8", "SQL_ASCII"}:
        raise ConfigurationError(
            f"{database.name} has the encoding {encoding}, which lacks some characters",
            hint="CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0",
        )
