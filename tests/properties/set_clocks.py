"""Clocks of both databases that can be set. Both begin at the same instant."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from sqlalchemy import text

from triggerer.store.database.opening import open_database
from triggerer.store.database.transactions import Database

BEGIN = datetime(2026, 3, 31, 23, tzinfo=UTC)
# The search path has this schema first, so the product's calls find its functions.
_MAKE = (
    "CREATE SCHEMA set_clock",
    "CREATE TABLE set_clock.ahead AS SELECT '0'::interval AS by",
    *(
        f"CREATE FUNCTION set_clock.{name}() RETURNS timestamptz LANGUAGE sql {kind} AS "
        f"$$ SELECT pg_catalog.{name}() + by FROM set_clock.ahead $$"
        for name, kind in (("clock_timestamp", "VOLATILE"), ("statement_timestamp", "STABLE"))
    ),
)


class Clock(Protocol):
    """The clock of one database.

    Args:
        accuracy: The most time that passes during a step.
    """

    accuracy: timedelta

    async def begin(self) -> None:
        """Set the clock to `BEGIN`."""

    async def move(self, by: timedelta) -> None:
        """Set the clock forward or back."""


@dataclass
class SqliteClock:
    """A clock that stands still unless it is moved."""

    now: datetime = BEGIN
    accuracy: timedelta = timedelta()

    async def begin(self) -> None:
        self.now = BEGIN

    async def move(self, by: timedelta) -> None:
        # Each step has its own instant, so that no two runs have the same.
        self.now += by + timedelta(microseconds=1)


@dataclass
class PostgresClock:
    """A clock that runs during the steps."""

    database: Database
    accuracy: timedelta = timedelta(minutes=1)

    async def begin(self) -> None:
        await self._set("CAST(:to AS timestamptz) - pg_catalog.clock_timestamp()", to=BEGIN)

    async def move(self, by: timedelta) -> None:
        if by:
            await self._set("by + :to", to=by)

    async def _set(self, value: str, **values: object) -> None:
        async with self.database.transaction() as session:
            await session.execute(text(f"UPDATE set_clock.ahead SET by = {value}"), values)


async def let_clock_be_set(url: str) -> None:
    """Give a PostgreSQL database a clock that can be set, for all later connections."""
    async with open_database(url) as database, database.transaction() as session:
        for statement in _MAKE:
            await session.execute(text(statement))
        name = await session.scalar(text("SELECT current_database()"))
        await session.execute(
            text(f'ALTER DATABASE "{name}" SET search_path = set_clock, pg_catalog, public')
        )
