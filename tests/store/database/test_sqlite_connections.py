"""Closing a SQLite database waits for the threads of its connections, even if their users were cancelled."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from sqlalchemy import text

from triggerer.errors import StoreUnavailable
from triggerer.store.database.opening import open_database
from triggerer.store.database.script import single_step
from triggerer.store.database.statement import Statement
from triggerer.store.database.transactions import Database
from triggerer.synchronization import checkpoint

_SELECT = Statement("SELECT 1")


async def _writes(database: Database) -> None:
    async with database.transaction() as session:
        await session.execute(text("SELECT 1"))


async def _reads(database: Database) -> None:
    async with database.reading() as session:
        await session.execute(text("SELECT 1"))


async def _performs(database: Database) -> None:
    await database.perform(single_step(_SELECT()))


@pytest.mark.parametrize("use", [_writes, _reads, _performs])
@pytest.mark.parametrize("turns", [1, 2, 3, 5, 8, 13, 21, 34])
def test_a_connection_whose_opening_is_cancelled_ends_before_the_database_is_closed(
    use: Callable[[Database], Awaitable[None]],
    turns: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect, errors = sqlite3.connect, []

    def connect_slowly(*args: Any, **options: Any) -> sqlite3.Connection:
        time.sleep(0.05)
        return connect(*args, **options)

    async def open_and_cancel() -> None:
        async with open_database(f"sqlite:///{tmp_path}/x.db") as database:
            monkeypatch.setattr(sqlite3, "connect", connect_slowly)
            # The pool has one open connection. All further connections take long to open.
            async with database.reading() as session, anyio.create_task_group() as tasks:
                await session.execute(text("SELECT 1"))
                tasks.start_soon(use, database)
                for _ in range(turns):
                    await checkpoint()
                tasks.cancel_scope.cancel()

    monkeypatch.setattr(threading, "excepthook", lambda args: errors.append(args.exc_value))
    asyncio.run(open_and_cancel())
    for thread in threading.enumerate():
        if "_connection_worker_thread" in thread.name:
            thread.join()
    # A thread that outlives the event loop raises when it reports its result to the loop.
    assert errors == []


async def test_a_cancelled_transaction_gives_the_lock_back_while_its_error_is_kept(
    tmp_path: Path,
) -> None:
    kept: list[BaseException] = []

    async def insert(database: Database, *, times: int) -> None:
        async with database.transaction() as session:
            for _ in range(times):
                # The rows of RETURNING are fetched in a second step. Until then, the statement is open.
                await session.execute(text("INSERT INTO t VALUES (1), (2), (3) RETURNING a"))

    async def insert_and_keep_the_error(database: Database) -> None:
        try:
            await insert(database, times=5)
        except BaseException as error:
            kept.append(error)
            raise

    async with open_database(
        f"sqlite:///{tmp_path}/x.db", busy_timeout=timedelta(seconds=0.5)
    ) as database:
        async with database.transaction() as session:
            await session.execute(text("CREATE TABLE t (a INTEGER)"))
        for turns in range(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(insert_and_keep_the_error, database)
                for _ in range(turns):
                    await checkpoint()
                tasks.cancel_scope.cancel()
            await insert(database, times=1)
    assert kept


@pytest.mark.parametrize("use", [_writes, _performs])
async def test_where_no_thread_can_be_had_the_database_is_away_and_closed_at_once(
    use: Callable[[Database], Awaitable[None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with open_database(f"sqlite:///{tmp_path}/x.db") as database:
        with monkeypatch.context() as refusing:
            refusing.setattr(threading.Thread, "start", refuse)
            with pytest.raises(StoreUnavailable, match="can't start new thread"):
                await use(database)
        await use(database)
        began = anyio.current_time()
    # Closing the database does not wait for a thread that was never started.
    assert anyio.current_time() - began < 3
