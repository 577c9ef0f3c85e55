"""A new stream is not opened until all files of the DAGs folder have been read. Until then, its watchers say why."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select, update

from tests.store.dags.test_dag_sync import NOW, asset, file, watcher
from triggerer.domain.dag_files.merging import merge
from triggerer.domain.dag_files.parsed import ParsedFile
from triggerer.domain.events import Fence
from triggerer.store.dags.sync import Changed, read_incumbents, sync_folder
from triggerer.store.database.transactions import Database, database_now
from triggerer.store.database.wakeups.signals import Signal
from triggerer.store.schema.models import Stream, Watcher
from triggerer.store.streams.leases import claim_streams
from triggerer.store.streams.opening import REASON, Reading
from triggerer.store.watchers.hosting import stream_loads

A = file("a.py", assets=(asset("a"),), watchers=(watcher("a", args="1"),))
B = file("b.py", assets=(asset("b"),), watchers=(watcher("b", args="2"),))
READING = Reading(is_reading=True, limit=timedelta(hours=1))
START = Reading(is_reading=True, is_start=True, limit=timedelta(hours=1))
READ = Reading()


async def sync(database: Database, reading: Reading, *files: ParsedFile) -> Changed:
    async with database.transaction() as session:
        folder = merge(files, await read_incumbents(session))
        every: dict[str, ParsedFile | None] = {one.path: one for one in files}
        return await sync_folder(session, folder, every, now=NOW, reading=reading)


async def claim(database: Database) -> list[Fence]:
    async with database.transaction() as session:
        return await claim_streams(session, "me", limit=10, room=10, sizes={"s": 2})


async def may_open(database: Database) -> bool:
    async with database.reading() as session:
        (load,) = await stream_loads(session)
        return load.may_open


async def said(database: Database) -> dict[str, str | None]:
    async with database.reading() as session:
        rows = list(await session.scalars(select(Watcher)))
        assert {row.state for row in rows} == {"waiting"}
        return {row.path: row.error for row in rows}


async def test_a_new_stream_can_be_claimed_once_all_files_have_been_read(
    database: Database,
) -> None:
    changed = await sync(database, READING, A)
    assert changed.openings.are_closed
    assert not await may_open(database)
    assert await claim(database) == []
    assert await said(database) == {"a.py": REASON}
    woken = database.wakeups.subscribe(Signal.STREAMS_CHANGED)
    changed = await sync(database, READ, A, B)
    assert not changed.openings.are_closed
    assert await said(database) == {"a.py": None, "b.py": None}
    assert woken.take_nowait() == {Signal.STREAMS_CHANGED: {"s"}}
    assert await may_open(database)
    assert await claim(database) == [Fence("s", "me", 1)]


async def test_it_can_be_claimed_at_once_if_all_files_have_been_read(database: Database) -> None:
    await sync(database, READ, A)
    assert await said(database) == {"a.py": None}
    assert await claim(database) == [Fence("s", "me", 1)]


@pytest.mark.parametrize("reading", [READING, START])
async def test_a_stream_that_was_read_before_is_never_closed(
    database: Database, reading: Reading
) -> None:
    await sync(database, READ, A)
    (fence,) = await claim(database)
    async with database.transaction() as session:
        await session.execute(update(Stream).values(owner=None, expires_at=None))
    changed = await sync(database, reading, A, B)
    assert not changed.openings.are_closed
    assert await said(database) == {"a.py": None, "b.py": None}
    assert await claim(database) == [fence._replace(epoch=2)]


async def test_a_watcher_that_joins_a_closed_stream_says_why_it_waits(database: Database) -> None:
    await sync(database, READING, A)
    await sync(database, READING, A, B)
    assert await said(database) == {"a.py": REASON, "b.py": REASON}


async def test_a_stream_opens_after_the_limit_although_no_files_are_read(
    database: Database,
) -> None:
    await sync(database, READING, A)
    async with database.transaction() as session:
        await session.execute(update(Stream).values(closed_until=await database_now(session)))
    assert await may_open(database)
    assert await claim(database) == [Fence("s", "me", 1)]
    changed = await sync(database, START, A, B)
    assert not changed.openings.are_closed


async def test_a_start_closes_a_stream_whose_limit_is_over_and_that_was_never_read(
    database: Database,
) -> None:
    await sync(database, READING, A)
    async with database.transaction() as session:
        await session.execute(update(Stream).values(closed_until=await database_now(session)))
    await sync(database, START, A)
    assert not await may_open(database)
    assert await claim(database) == []
