"""Transactions written as scripts: generators that yield one step after the other and are sent its rows.

A script decides in plain Python between its steps and does no IO, so that it can be performed in three
ways: on SQLite in one turn of the connection's thread from BEGIN to COMMIT, on PostgreSQL straight
through the driver with a round trip for each step (both: `Database.perform`), and within somebody's
session (`perform`). Each statement that goes through SQLAlchemy costs the event loop 0.2 to 0.3 ms, a
transaction 0.3 to 1.1 ms more; a turn of the thread costs 0.07 ms whatever it does
(tests/benchmarks/store_bench.py). The transactions between a message and its run are scripts; all
others are written as everywhere.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar, runtime_checkable

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.engine.clock import Clock, clock_of
from triggerer.store.engine.sqlite_thread import in_thread
from triggerer.store.wakeups.signals import ALL, Announced, Signal, announce

Row = Sequence[Any]
T = TypeVar("T")


class Step(Protocol):
    """One thing that a script asks of the database."""

    def on_sqlite(self, connection: sqlite3.Connection, clock: Clock) -> list[Row]:
        """Do it, within the transaction that is open; return its rows as the driver gives them."""

    def on_postgres(self) -> tuple[str, Sequence[Any]]:
        """The statement that does it, in asyncpg's form, and its arguments."""


@runtime_checkable
class Opening(Step, Protocol):
    """A step whose rows nobody needs: on PostgreSQL it can go along with BEGIN, in one round trip."""

    def with_begin(self) -> str:
        """The statement with its values written out, see `literal`."""


def one(step: Step) -> Script[list[Row]]:
    """A script of one step, which returns its rows."""
    return (yield step)


def literal(value: str) -> str:
    """A string in PostgreSQL's SQL; what holds a NUL byte, which no database of ours stores, is refused there."""
    return "'" + value.replace("'", "''") + "'"


@dataclass(frozen=True, slots=True)
class Announcement:
    """Wake the signal's subscribers in all processes once the transaction has committed; see `announce`."""

    signal: Signal
    subjects: tuple[str, ...] = (ALL,)


Script = Generator[Step | Announcement, list[Row], T]
"""What `perform` takes; it is performed once and returns a T."""

Answer = Callable[[Step], Awaitable[list[Row]]]
"""Does a step, and returns its rows."""


class ScriptRunner(ABC):
    """Gives scripts transactions of their own, on connections of its own beside those of SQLAlchemy's pools."""

    @abstractmethod
    async def perform(self, script: Script[T], announced: Announced) -> T:
        """Begin, perform, commit. What the script announces is in `announced`, also if this raises.

        Raises:
            StoreUnavailable, Conflict, RowRefused, OutcomeUnknown, ConfigurationError: As
                `Database.transaction`.
        Cancellation: As `Database.transaction`; on SQLite what has begun is finished.
        """

    @abstractmethod
    async def once(self, step: Step) -> list[Row]:
        """Make a transaction of one step: on PostgreSQL a single round trip. Raises as `perform`."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close the connections; nothing is performed any more."""


@dataclass(frozen=True, slots=True)
class DatabaseNow:
    """The database's clock, which all instants share; on SQLite the host's, as there is one."""

    def on_sqlite(self, connection: sqlite3.Connection, clock: Clock) -> list[Row]:
        return [(clock(),)]

    def on_postgres(self) -> tuple[str, Sequence[Any]]:
        return "SELECT clock_timestamp()", ()


def database_instant() -> Script[datetime]:
    """The present instant of the database's clock, aware."""
    ((now,),) = yield DatabaseNow()
    assert isinstance(now, datetime)
    return now.astimezone(UTC)


async def perform(session: AsyncSession, script: Script[T]) -> T:
    """Perform a script as a part of the session's transaction.

    Raises:
        sqlite3.Error, sqlalchemy.exc.DBAPIError: `Database.transaction` translates them.
    """
    announced: Announced = {}
    connection = await session.connection()
    if connection.dialect.name == "sqlite":
        clock = clock_of(session)
        result = await in_thread(
            connection, lambda sqlite: perform_on_sqlite(sqlite, script, clock, announced)
        )
    else:

        async def answer(step: Step) -> list[Row]:
            statement, arguments = step.on_postgres()
            rows = await connection.exec_driver_sql(statement, tuple(arguments))
            return [tuple(row) for row in rows] if rows.returns_rows else []

        result = await perform_steps(answer, script, announced)
    for signal, subjects in announced.items():
        announce(session, signal, *subjects)
    return result


def perform_on_sqlite(
    connection: sqlite3.Connection, script: Script[T], clock: Clock, announced: Announced
) -> T:
    """Perform a script in the connection's thread; what it announces is added to `announced`.

    Raises:
        sqlite3.Error: As the driver says it. The transaction is still open.
    """
    try:
        step = next(script)
        while True:
            if isinstance(step, Announcement):
                _note(step, announced)
                step = script.send([])
            else:
                step = script.send(step.on_sqlite(connection, clock))
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        script.close()


async def perform_steps(answer: Answer, script: Script[T], announced: Announced) -> T:
    """The same, waiting for one step after the other. Raises what `answer` raises."""
    try:
        step = next(script)
        while True:
            if isinstance(step, Announcement):
                _note(step, announced)
                step = script.send([])
            else:
                step = script.send(await answer(step))
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        script.close()


def _note(step: Announcement, announced: Announced) -> None:
    announced.setdefault(step.signal, set()).update(step.subjects or (ALL,))
