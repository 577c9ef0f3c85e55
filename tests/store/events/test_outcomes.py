"""The recorder and the database while the store fails."""

import sqlite3
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import AsyncSession

from tests.services.databases.postgres import PostgresServer
from tests.store.seeding import (
    SOURCE,
    Event,
    add_asset,
    add_dag,
    asset_json,
    count_events,
    emit,
    events_in,
    queue_of,
    record,
    recording,
    until,
)
from triggerer.errors import Conflict, OutcomeUnknown, StoreRefused, StoreUnavailable
from triggerer.store.database.opening import open_database
from triggerer.store.database.postgres.runner import PostgresRunner
from triggerer.store.database.script import Row, Script, Step
from triggerer.store.database.sqlite.runner import SqliteRunner
from triggerer.store.database.statement import Statement
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups.signals import Signal, announce
from triggerer.store.events.recorder import EventRecorder
from triggerer.store.schema.models import AssetAlias


@pytest.fixture(scope="session")
def postgres_server(durable_postgres_server: PostgresServer) -> PostgresServer:
    return durable_postgres_server


async def _one_dag(database: Database) -> None:
    await add_asset(database, 1, "flights")
    await add_dag(database, "report", asset_json("flights"), assets=[1])


async def _until_in_trouble(recorder: EventRecorder) -> None:
    await until(lambda: recorder.trouble is not None)


async def _until_well(recorder: EventRecorder) -> None:
    with anyio.fail_after(60):
        await recorder.drained()


@pytest.mark.rule("12: a commit whose outcome is unknown is repeated unchanged")
@pytest.mark.parametrize("committed", [True, False], ids=["committed", "not committed"])
async def test_a_commit_with_an_unknown_outcome_is_repeated_as_it_was(
    database: Database, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    await _one_dag(database)
    runner = SqliteRunner if database.dialect == "sqlite" else PostgresRunner
    perform_step = runner.perform_step
    calls = 0
    lost = anyio.Event()

    async def lose_the_first_answer(self: Any, step: Step) -> list[Row]:
        nonlocal calls
        calls += 1
        if committed or calls > 1:
            rows = await perform_step(self, step)
        if calls == 1:
            lost.set()
            raise OutcomeUnknown("the answer was lost")
        return rows

    monkeypatch.setattr(runner, "perform_step", lose_the_first_answer)
    woken = database.wakeups.subscribe(Signal.EVENTS_QUEUED)
    # The second event has no idempotency key. The recorder creates a key, and must repeat the write with this key.
    events = [Event("a", "key"), Event("b")]
    async with recording(database) as recorder:
        events[0].submit_to(recorder)
        events[1].submit_to(recorder)
        await lost.wait()
        later = Event("later")
        later.submit_to(recorder)
        await _until_well(recorder)
    assert [event.error for event in (*events, later)] == [None, None, None]
    stored = [row.extra["payload"] for row in await events_in(database)]
    assert stored == ["a", "b", "later"]
    # The repeat announces the events although they are queued already, because the first answer was lost.
    assert Signal.EVENTS_QUEUED in woken.take_nowait()
    assert len(await queue_of(database, "report")) == 3


async def test_a_commit_that_outlives_its_deadline_is_an_unknown_outcome(
    store_url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _one_dag(database)
    async with open_database(store_url, commit_timeout=timedelta(seconds=0.2)) as impatient:
        commit = AsyncSession.commit
        never = anyio.Event()

        async def hang(session: AsyncSession) -> None:
            await never.wait()

        monkeypatch.setattr(AsyncSession, "commit", hang)
        with pytest.raises(OutcomeUnknown), anyio.fail_after(10):
            async with impatient.transaction() as session:
                session.add(AssetAlias(name="lost"))
        monkeypatch.setattr(AsyncSession, "commit", commit)
        # Neither a lock nor an open transaction is left.
        async with impatient.transaction() as session:
            session.add(AssetAlias(name="kept"))
        async with impatient.reading() as session:
            names = list(await session.scalars(text("SELECT name FROM asset_alias")))
    assert names == ["kept"]


async def test_a_cancellation_during_the_commit_does_not_undo_it(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = AsyncSession.commit
    after: list[str] = []

    async def cancelled_meanwhile(session: AsyncSession) -> None:
        scope.cancel()
        await commit(session)

    monkeypatch.setattr(AsyncSession, "commit", cancelled_meanwhile)
    with anyio.CancelScope() as scope:
        async with database.transaction() as session:
            session.add(AssetAlias(name="kept"))
        after.append("the caller learns of the commit before it learns of the cancellation")
        await anyio.lowlevel.checkpoint()
        after.append("never")
    assert len(after) == 1
    monkeypatch.undo()
    async with database.reading() as session:
        assert await session.scalar(text("SELECT count(*) FROM asset_alias")) == 1


async def test_a_cancelled_block_writes_nothing_and_the_next_one_works(database: Database) -> None:
    for _ in range(3):
        with anyio.CancelScope() as scope:
            async with database.transaction() as session:
                session.add(AssetAlias(name="undone"))
                await session.flush()
                scope.cancel()
                await session.execute(text("SELECT 1"))
        async with database.transaction() as session:
            assert await session.scalar(text("SELECT count(*) FROM asset_alias")) == 0


async def test_no_connection_is_left_checked_out(database: Database) -> None:
    for _ in range(20):
        with anyio.move_on_after(0.001):
            async with database.transaction() as session:
                session.add(AssetAlias(name="undone"))
                await session.flush()
                await anyio.sleep(1)
        with suppress(ZeroDivisionError):
            async with database.reading() as session:
                await session.execute(text("SELECT 1"))
                raise ZeroDivisionError
    for engine in (database.writer, database.reader):
        assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]


async def test_a_duplicate_is_a_conflict_and_not_a_driver_error(database: Database) -> None:
    """The store checks for the row first, so only concurrent transactions cause duplicates."""
    async with database.transaction() as session:
        session.add(AssetAlias(name="one"))
    with pytest.raises(Conflict):
        async with database.transaction() as session:
            session.add(AssetAlias(name="one"))


async def test_a_deadlock_is_a_conflict(postgres: Database) -> None:
    await _one_dag(postgres)
    await add_asset(postgres, 2, "weather")
    ready = [anyio.Event(), anyio.Event()]
    conflicts = []
    update = text("UPDATE asset SET extra = '{}' WHERE id = :id")

    async def lock(first: int, second: int) -> None:
        try:
            async with postgres.transaction() as session:
                await session.execute(update, {"id": first})
                ready[first - 1].set()
                await ready[second - 1].wait()
                await session.execute(update, {"id": second})
        except Conflict as error:
            conflicts.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lock, 1, 2)
        tasks.start_soon(lock, 2, 1)
    assert len(conflicts) == 1


async def test_nothing_is_announced_when_the_transaction_fails(database: Database) -> None:
    subscription = database.wakeups.subscribe(Signal.RUNS_QUEUED)
    with suppress(ZeroDivisionError):
        async with database.transaction() as session:
            announce(session, Signal.RUNS_QUEUED, "dag")
            raise ZeroDivisionError
    assert subscription.take_nowait() == {}


async def test_events_survive_a_postgresql_that_is_stopped_and_started(
    postgres: Database, postgres_server: PostgresServer
) -> None:
    await _one_dag(postgres)
    events = [Event(n, f"k{n}", source=SOURCE) for n in range(400)]
    async with recording(postgres) as recorder:
        for event in events[:100]:
            event.submit_to(recorder)
        await anyio.to_thread.run_sync(postgres_server.stop)
        for event in events[100:200]:
            event.submit_to(recorder)
        await _until_in_trouble(recorder)
        assert isinstance(recorder.trouble, StoreUnavailable | OutcomeUnknown)
        assert not any(event.outcomes for event in events[100:200])
        await anyio.to_thread.run_sync(postgres_server.start)
        await record(recorder, *events[200:300], timeout=60)
        assert recorder.trouble is None
        # A killed server closes no connection in order, so the next group commit meets a dead connection.
        await anyio.to_thread.run_sync(postgres_server.kill)
        await anyio.to_thread.run_sync(postgres_server.start)
        await record(recorder, *events[300:], timeout=60)
    assert [event.error for event in events] == [None] * 400
    stored = [row.extra["payload"] for row in await events_in(postgres)]
    assert stored == list(range(400))
    assert len(await queue_of(postgres, "report")) == 400


@pytest.mark.parametrize("turns", range(4))
async def test_a_connection_whose_end_has_been_read_in_part_is_an_outage(
    turns: int, postgres: Database, postgres_server: PostgresServer
) -> None:
    """After SIGSTOP, a process may read the server's last message and the connection's end in different turns."""

    async def use(session: AsyncSession) -> None:
        pid = (await session.execute(text("SELECT pg_backend_pid()"))).scalar_one()
        connection: Any = (
            await (await session.connection()).get_raw_connection()
        ).driver_connection
        async with open_database(postgres.url) as other, other.reading() as beside:
            await beside.execute(text(f"SELECT pg_terminate_backend({pid})"))
            # Block the event loop, as SIGSTOP would.
            time.sleep(0.3)
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            await connection.fetch("SELECT 1")

    with pytest.raises(StoreUnavailable):
        async with postgres.transaction() as session:
            await use(session)


async def test_a_connection_that_died_while_idle_is_replaced_unseen(
    postgres: Database, postgres_server: PostgresServer
) -> None:
    await _one_dag(postgres)
    await anyio.to_thread.run_sync(postgres_server.stop)
    await anyio.to_thread.run_sync(postgres_server.start)
    assert len(await emit(postgres, 1)) == 1


async def test_events_wait_while_another_process_writes_to_sqlite(sqlite_url: str) -> None:
    quick = timedelta(seconds=0.1)
    async with open_database(sqlite_url, busy_timeout=quick) as database:
        await _one_dag(database)
        other = sqlite3.connect(database.path or "", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        events = [Event(n, f"k{n}") for n in range(50)]
        async with recording(database) as recorder:
            for event in events:
                event.submit_to(recorder)
            await _until_in_trouble(recorder)
            assert isinstance(recorder.trouble, StoreUnavailable)
            assert "another process" in str(recorder.trouble)
            # Readers continue.
            assert await count_events(database) == 0
            other.execute("ROLLBACK")
            await _until_well(recorder)
        other.close()
        assert [event.error for event in events] == [None] * 50
        assert await count_events(database) == 50


async def test_a_full_disk_loses_nothing_and_the_error_has_a_hint(sqlite: Database) -> None:
    await _one_dag(sqlite)

    async def limit_pages(number: int) -> None:
        def limit() -> Script[None]:
            yield Statement(f"PRAGMA max_page_count={number}")()

        await sqlite.perform(limit())

    async with sqlite.transaction() as session:
        pages = await session.scalar(text("PRAGMA page_count"))
    await limit_pages(pages + 8)
    events = [Event({"text": "x" * 1_000, "n": n}, f"k{n}") for n in range(200)]
    async with recording(sqlite) as recorder:
        for event in events:
            event.submit_to(recorder)
        await _until_in_trouble(recorder)
        assert isinstance(recorder.trouble, StoreUnavailable)
        assert "make room" in str(recorder.trouble)
        assert not any(event.outcomes for event in events)
        await limit_pages(1_000_000)
        await _until_well(recorder)
    assert [event.error for event in events] == [None] * 200
    assert [row.extra["n"] for row in await events_in(sqlite)] == list(range(200))


@pytest.mark.parametrize("by", ["script", "session"])
async def test_a_sqlite_file_that_goes_during_a_commit_is_an_unknown_outcome(
    sqlite_url: str, by: str
) -> None:
    path = Path(str(make_url(sqlite_url).database))
    async with open_database(sqlite_url) as database:

        def remove() -> Script[None]:
            path.unlink()
            return
            yield

        async def write_by_session() -> None:
            async with database.transaction() as session:
                session.add(AssetAlias(name="lost"))
                path.unlink()

        with pytest.raises(OutcomeUnknown, match=r"is gone: .* while it was written"):
            await (database.perform(remove()) if by == "script" else write_by_session())
        with pytest.raises(StoreRefused, match="is gone"):
            await database.perform(remove())
    assert not path.exists()
