"""The plans that PostgreSQL makes, and what statements cost."""

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncConnection

from triggerer.store.database.clock import Now
from triggerer.store.database.script import Row, Step


@dataclass(frozen=True)
class Explained:
    """A step whose plan the database must show.

    Args:
        how: The options of EXPLAIN, in brackets.
    """

    step: Step
    how: str = ""

    def on_sqlite(self, connection: sqlite3.Connection, now: Now) -> list[Row]:
        raise NotImplementedError("only plans of PostgreSQL are asked for")

    def on_postgres(self) -> tuple[str, Sequence[Any]]:
        statement, arguments = self.step.on_postgres()
        return f"EXPLAIN {self.how} {statement}", arguments


@dataclass
class Work:
    """The work of a statement: rows returned or discarded by any node (PostgreSQL), or hundreds of steps (SQLite)."""

    done: int = 0


@asynccontextmanager
async def working(connection: AsyncConnection) -> AsyncIterator[Work]:
    """Count what this connection does for the queries that are asked inside; known at the end."""
    work = Work()
    if connection.dialect.name == "sqlite":
        driver: Any = (await connection.get_raw_connection()).driver_connection

        def step() -> int:
            work.done += 1
            return 0

        await driver.set_progress_handler(step, 100)
        yield work
        await driver.set_progress_handler(None, 100)
        return
    asked: list[tuple[str, Any]] = []

    def note(_c: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        asked.append((statement, parameters))

    event.listen(connection.sync_connection, "before_cursor_execute", note)
    yield work
    event.remove(connection.sync_connection, "before_cursor_execute", note)
    for statement, parameters in asked:
        explained = f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}"
        ((plan,),) = await connection.exec_driver_sql(explained, parameters)
        work.done += rows_read(plan[0]["Plan"])


def rows_read(plan: dict[str, Any]) -> int:
    """The rows that a node of an analyzed plan, and those below it, gave or threw away."""
    thrown = plan.get("Rows Removed by Filter", 0) + plan.get("Rows Removed by Join Filter", 0)
    below = sum(map(rows_read, plan.get("Plans", ())))
    return int((plan["Actual Rows"] + thrown) * plan["Actual Loops"]) + below
