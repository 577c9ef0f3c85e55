"""Transactions written as scripts: generators that yield one step (a statement) after another, and receive its rows.

A script does no I/O: between its steps it decides in plain Python. So one script can be performed in three ways:

- On SQLite, `Database.perform` makes one call in the connection's thread, from BEGIN to COMMIT.
- On PostgreSQL, `Database.perform` calls the driver directly, with a round trip for each step.
- The function `perform` below makes the script a part of a session's transaction.

The transactions that turn messages into runs are scripts, because SQLAlchemy is slower. A single statement through
SQLAlchemy takes 0.2 to 0.3 ms of the event loop's time. A whole script on SQLite takes 0.07 ms
(tests/benchmarks/store_bench.py). Most other transactions use SQLAlchemy.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar, runtime_checkable

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.database.clock import Now, now_of
from triggerer.store.database.sqlite.thread import in_thread
from triggerer.store.database.wakeups.signals import ALL, Announced, Signal, announce

Row = Sequence[Any]
T = TypeVar("T")


class Step(Protocol):
    """One operation that a script asks of the database, usually one statement."""

    def on_sqlite(self, connection: sqlite3.Connection, now: Now) -> list[Row]:
        """Perform the step in the open transaction; return its rows as the driver gives them."""

    def on_postgres(self) -> tuple[str, Sequence[Any]]:
        """Return the statement that performs the step, in asyncpg's form, and its arguments."""


@runtime_checkable
class Opening(Step, Protocol):
    """A step whose rows are not used. If it is a script's first step, PostgreSQL receives it together with BEGIN."""

    def with_begin(self) -> str:
        """Return the statement with its values as literals. A statement sent with BEGIN cannot have arguments."""


def single_step(step: Step) -> Script[list[Row]]:
    """Make a script of one step, which returns its rows."""
    return (yield step)


def all_steps(steps: Iterable[Step]) -> Script[list[list[Row]]]:
    """Make a script of these steps. It returns the rows of each step, in the given order."""
    answers: list[list[Row]] = []
    for step in steps:
        rows = yield step
        answers.append(rows)
    return answers


def literal(value: str) -> str:
    """Write a string as a literal of PostgreSQL's SQL. The server refuses a string with a NUL byte."""
    return "'" + value.replace("'", "''") + "'"


@dataclass(frozen=True, slots=True)
class Announcement:
    """Wake the signal's subscribers in all processes once the transaction has committed; see `announce`."""

    signal: Signal
    subjects: tuple[str, ...] = (ALL,)


Script = Generator[Step | Announcement, list[Row], T]
"""A script can be performed only once. `T` is the type of its result."""

PerformStep = Callable[[Step], Awaitable[list[Row]]]
"""Performs a step and returns its rows."""


class ScriptRunner(ABC):
    """Performs scripts in transactions of their own, on connections that do not belong to SQLAlchemy's pools."""

    has_written = True
    """False if the last transaction on SQLite changed no row. Such a success does not show that the disk has room."""

    @abstractmethod
    async def perform(self, script: Script[T], announced: Announced) -> T:
        """Begin a transaction, perform the script, and commit.

        The script's announcements are added to `announced` before this call ends, even if the commit fails.

        Raises:
            StoreUnavailable, StoreRefused, Conflict, RowRefused, OutcomeUnknown: As for `Database.transaction`.
        Cancellation: As for `Database.transaction`. But on SQLite, a script that has begun is finished and committed.
        """

    @abstractmethod
    async def perform_step(self, step: Step) -> list[Row]:
        """Perform one step in a transaction of its own; return its rows. On PostgreSQL this is one round trip.

        Raises:
            The errors of `perform`.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Close the connections. Nothing may be performed afterwards."""


@dataclass(frozen=True, slots=True)
class DatabaseNow:
    """A step: read the database's time, which is the host's time for SQLite."""

    def on_sqlite(self, connection: sqlite3.Connection, now: Now) -> list[Row]:
        return [(now(),)]

    def on_postgres(self) -> tuple[str, Sequence[Any]]:
        return "SELECT clock_timestamp()", ()


def database_instant() -> Script[datetime]:
    """Return the database's time, aware."""
    ((now,),) = yield DatabaseNow()
    assert isinstance(now, datetime)
    return now.astimezone(UTC)


async def perform(session: AsyncSession, script: Script[T]) -> T:
    """Perform a script as part of the session's transaction.

    Raises:
        sqlite3.Error, sqlalchemy.exc.DBAPIError: `Database.transaction` translates them.
    """
    announced: Announced = {}
    connection = await session.connection()
    if connection.dialect.name == "sqlite":
        now = now_of(session)
        result = await in_thread(
            connection, lambda sqlite: perform_on_sqlite(sqlite, script, now, announced)
        )
    else:

        async def perform_step(step: Step) -> list[Row]:
            statement, arguments = step.on_postgres()
            rows = await connection.exec_driver_sql(statement, tuple(arguments))
            return [tuple(row) for row in rows] if rows.returns_rows else []

        result = await perform_stepwise(perform_step, script, announced)
    for signal, subjects in announced.items():
        announce(session, signal, *subjects)
    return result


def perform_on_sqlite(
    connection: sqlite3.Connection, script: Script[T], now: Now, announced: Announced
) -> T:
    """Perform a script, and add its announcements to `announced`. Called in the connection's thread.

    Raises:
        sqlite3.Error: The driver's error, not translated. The caller must roll back the transaction.
    """
    try:
        step = next(script)
        while True:
            if isinstance(step, Announcement):
                _collect(step, announced)
                step = script.send([])
            else:
                step = script.send(step.on_sqlite(connection, now))
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        script.close()


async def perform_stepwise(perform_step: PerformStep, script: Script[T], announced: Announced) -> T:
    """Perform a script, awaiting one step after the other. Raises the errors of `perform_step`."""
    try:
        step = next(script)
        while True:
            if isinstance(step, Announcement):
                _collect(step, announced)
                step = script.send([])
            else:
                step = script.send(await perform_step(step))
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        script.close()


def _collect(step: Announcement, announced: Announced) -> None:
    announced.setdefault(step.signal, set()).update(step.subjects or (ALL,))
