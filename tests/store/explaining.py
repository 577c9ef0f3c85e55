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
    """A step that makes PostgreSQL show the plan of another step.

    Args:
        how: The options of EXPLAIN, in parentheses.
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
    """The work of queries: rows that plan nodes returned or discarded (PostgreSQL), or hundreds of steps (SQLite)."""

    done: int = 0


@asynccontextmanager
async def working(connection: AsyncConnection) -> AsyncIterator[Work]:
    """Count the connection's work for the queries of the block. The count is complete after the block."""
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
    """Return the number of rows that a node of an analyzed plan and the nodes below it returned or discarded."""
    thrown = plan.get("Rows Removed by Filter", 0) + plan.get("Rows Removed by Join Filter", 0)
    below = sum(map(rows_read, plan.get("Plans", ())))
    return int((plan["Actual Rows"] + thrown) * plan["Actual Loops"]) + below
