"""Reads all events of an asset or alias for a task, in pieces of many events."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Select, Text, type_coerce
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.sql.compiler import SQLCompiler

from triggerer.store.database.listed_ids import is_listed, is_postgres, plan_with_values
from triggerer.store.events.run_events import columns_of, ids_of_asset, ids_of_run
from triggerer.store.schema.models import AssetEvent

_PARTITION_KEY: Final = -2
"""The index of the partition keys among the columns of `columns_of`. Pieces leave this column out."""


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
    - the watcher, DAG, run and task that the event came from,
    - `extra`, as JSON text.

    Args:
        last_id: Events with a higher id are left out.
        run_pk: The run whose triggering events are read; needs `uri`. None: all events of the asset or alias.
        uri: The URI of the asset. None: `alias` is given.
    """
    if run_pk is None:
        ids, event_id = await ids_of_asset(session, uri=uri, alias=alias)
    else:
        assert uri is not None
        ids, event_id = await ids_of_run(session, run_pk=run_pk, uri=uri)
    read = _read_postgres if is_postgres(session) else _read_sqlite
    async for rows in read(session, ids.where(event_id <= last_id).order_by(event_id), size):
        if rows:
            columns = list(zip(*rows, strict=True))
            del columns[_PARTITION_KEY]
            yield columns


# The functions below read the ids first, and then look up the events (`run_events._read` explains why). They call the
# drivers directly, because SQLAlchemy takes twice as long for each row.


async def _read_sqlite(
    session: AsyncSession, ids: Select[int], size: int
) -> AsyncIterator[Sequence[Any]]:
    sql, values = _compiled(session, ids)
    path = _path_of(session)
    # Reading blocks the event loop. This is harmless, because the function runs in a child process of the executor that
    # has nothing else to do.
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        cursor = connection.execute(sql, values)
        while some := cursor.fetchmany(size):
            yield connection.execute(*_look_up(session, some)).fetchall()


async def _read_postgres(
    session: AsyncSession, ids: Select[int], size: int
) -> AsyncIterator[Sequence[Any]]:
    await plan_with_values(session)
    sql, values = _compiled(session, ids)
    raw = await (await session.connection()).get_raw_connection()
    driver: Any = raw.driver_connection
    # A cursor needs a transaction, and the session has begun one.
    cursor = await driver.cursor(sql, *values)
    while some := await cursor.fetch(size):
        sql, values = _look_up(session, some)
        yield sorted(await driver.fetch(sql, *values), key=itemgetter(0))


def _look_up(session: AsyncSession, ids: Sequence[Sequence[int]]) -> tuple[str, list[Any]]:
    """Return the statement that reads the events with these ids, and its values."""
    wanted = is_listed(session, AssetEvent.id, [event_id for (event_id,) in ids])
    if is_postgres(session):
        return _compiled(session, columns_of(session, wanted))
    # Select the timestamps as text, which Arrow can read. Parsing a million instants in Python would take seconds.
    query = columns_of(session, wanted, timestamp=type_coerce(AssetEvent.timestamp, Text))
    return _compiled(session, query.order_by(AssetEvent.id))


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
