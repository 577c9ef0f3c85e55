"""Reads all events of an asset or alias for a task, in pieces of many events."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import Select, Text, type_coerce
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.sql.compiler import SQLCompiler

from triggerer.store.events.run_events import columns_of, events_of_asset, events_of_run
from triggerer.store.schema.models import AssetEvent


async def read_pieces(
    session: AsyncSession,
    *,
    size: int,
    last_id: int,
    run_pk: int | None = None,
    uri: str | None = None,
    alias: str | None = None,
) -> AsyncIterator[Sequence[Sequence[Any]]]:
    """Yield the events in the order of their ids, in pieces of at most `size` events.

    A piece is a list of columns, and a column has a value for each event. These are the columns:

    - the event's id,
    - the name and the URI of the asset,
    - the timestamp, on SQLite as text in UTC,
    - the watcher, DAG, run and task that made the event,
    - `extra`, as JSON text.

    Args:
        last_id: Events with a greater id are left out.
        run_pk: The run whose triggering events are read; needs `uri`. None: all events of the asset or alias.
        uri: The URI of the asset. None: `alias` is given.
    """
    if run_pk is not None:
        assert uri is not None
        events, event_id = await events_of_run(session, run_pk=run_pk, uri=uri)
    else:
        events, event_id = await events_of_asset(session, uri=uri, alias=alias)
    # On SQLite the timestamps stay text. Parsing a million instants in Python would take seconds, and Arrow can read
    # the text.
    is_sqlite = session.get_bind().dialect.name == "sqlite"
    timestamp = type_coerce(AssetEvent.timestamp, Text) if is_sqlite else None
    query = columns_of(session, events, timestamp=timestamp)
    query = query.where(event_id <= last_id).order_by(event_id)
    names = query.selected_columns.keys()
    read = _read_sqlite if is_sqlite else _read_postgres
    async for rows in read(session, query, size):
        columns = dict(zip(names, zip(*rows, strict=True), strict=True))
        del columns["partition_key"]
        yield list(columns.values())


# The drivers are used directly, because a row through SQLAlchemy takes twice as long.


async def _read_sqlite(
    session: AsyncSession, query: Select[Any], size: int
) -> AsyncIterator[Sequence[Any]]:
    text, values = _compiled(session, query)
    path = _path_of(session)
    # Reading blocks the event loop. That does no harm, because this process does nothing else.
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        cursor = connection.execute(text, values)
        while rows := cursor.fetchmany(size):
            yield rows


async def _read_postgres(
    session: AsyncSession, query: Select[Any], size: int
) -> AsyncIterator[Sequence[Any]]:
    text, values = _compiled(session, query)
    raw = await (await session.connection()).get_raw_connection()
    driver: Any = raw.driver_connection
    # A cursor needs a transaction, and the session has begun one.
    cursor = await driver.cursor(text, *values)
    while rows := await cursor.fetch(size):
        yield rows


def _path_of(session: AsyncSession) -> Path:
    return Path(session.get_bind().engine.url.database or "").absolute()


def _compiled(session: AsyncSession, query: Select[Any]) -> tuple[str, list[Any]]:
    """Return a query in the driver's form, and its values."""
    compiled = query.compile(
        dialect=session.get_bind().dialect, compile_kwargs={"render_postcompile": True}
    )
    parameters = compiled.construct_params()
    assert isinstance(compiled, SQLCompiler)
    return str(compiled), [parameters[name] for name in compiled.positiontup or ()]
