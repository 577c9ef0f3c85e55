"""Copies the rows of a SQLite store into an empty PostgreSQL store, so that a large store is made only once."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
from sqlalchemy import Boolean, Column, Table

from tests.services.process import run_apart
from triggerer.store.schema.models import Base
from triggerer.store.schema.models.base import UtcDateTime


def copy_store(source: Path, url: str) -> None:
    """Copy all rows of a file that no service uses. The PostgreSQL store at `url` has the same tables, and no rows."""
    run_apart(_copy(source, url))


async def _copy(source: Path, url: str) -> None:
    target = await asyncpg.connect(url.replace("+asyncpg", ""))
    try:
        with closing(sqlite3.connect(source)) as rows:
            for table in Base.metadata.sorted_tables:
                columns = [column.name for column in table.columns]
                await target.copy_records_to_table(
                    table.name, records=_records(rows, table), columns=columns
                )
                await _continue_ids(target, table)
        await target.execute("ANALYZE")
    finally:
        await target.close()


def _records(source: sqlite3.Connection, table: Table) -> Iterator[tuple[Any, ...]]:
    names = ", ".join(f'"{column.name}"' for column in table.columns)
    casts = [_cast(column) for column in table.columns]
    for row in source.execute(f'SELECT {names} FROM "{table.name}"'):
        yield tuple(
            value if value is None or cast is None else cast(value)
            for value, cast in zip(row, casts, strict=True)
        )


def _cast(column: Column[Any]) -> Callable[[Any], Any] | None:
    """Return a function that turns SQLite's value into PostgreSQL's; None if both databases store the same value."""
    if isinstance(column.type, UtcDateTime):
        return lambda text: datetime.fromisoformat(text).replace(tzinfo=UTC)
    return bool if isinstance(column.type, Boolean) else None


async def _continue_ids(target: asyncpg.Connection[asyncpg.Record], table: Table) -> None:
    """Let new rows get ids above the ids of the copied rows."""
    sequence = await target.fetchval(
        "SELECT pg_get_serial_sequence($1, column_name) FROM information_schema.columns"
        " WHERE table_schema = current_schema() AND table_name = $1"
        " AND pg_get_serial_sequence($1, column_name) IS NOT NULL",
        table.name,
    )
    if sequence is not None:
        newest = await target.fetchval(f"SELECT max(id) FROM {table.name}")
        if newest is not None:
            await target.execute("SELECT setval($1::regclass, $2)", sequence, newest)
