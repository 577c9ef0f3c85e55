import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import anyio
import pytest
from sqlalchemy import select, text

from triggerer.errors import StoreUnavailable
from triggerer.store.database.opening import open_database
from triggerer.store.database.postgres import primary as postgres_primary
from triggerer.store.database.postgres import stuck_sessions
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups import listening
from triggerer.store.schema.models import Stream


@pytest.mark.parametrize("waits", ["ClientRead", "ClientWrite"])
async def test_a_process_stopped_in_a_statement_does_not_keep_its_locks(
    waits: str, postgres: Database, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(postgres_primary.SETTINGS, "idle_in_transaction_session_timeout", "200")
    monkeypatch.setattr(stuck_sessions, "SENDS_NOTHING_FOR_S", 0.2)
    monkeypatch.setattr(stuck_sessions, "READS_FOR_S", 0.2)
    monkeypatch.setattr(listening, "_CHECK_INTERVAL", timedelta(seconds=0.1))
    async with postgres.transaction() as session:
        stream = Stream(digest="one", key="one")
        session.add(stream)
    lock = select(Stream).with_for_update(skip_locked=True)

    async def stop(stopped: Database) -> None:
        async with stopped.transaction() as held:
            await held.execute(lock)
            driver = (await (await held.connection()).get_raw_connection()).driver_connection
            assert driver is not None
            reading: asyncio.Future[object] | None = None
            if waits == "ClientRead":
                # `prepare` sends the first half of a statement. The second half is never sent.
                await driver.prepare("SELECT 42")
            else:
                rows = "SELECT repeat('x', 1000000) FROM generate_series(1, 100)"
                statement = await driver.prepare(rows)
                reading = asyncio.ensure_future(statement.fetch())
                await asyncio.sleep(0)
                driver._transport.pause_reading()
            with anyio.fail_after(30):
                await until_it_is_free()
            if reading is not None:
                driver._transport.resume_reading()
                await reading
            await held.execute(text("SELECT 1"))

    async def until_it_is_free() -> None:
        while True:
            async with postgres.transaction() as session:
                if (await session.scalars(lock)).all():
                    return
            await anyio.sleep(0.05)

    async with anyio.create_task_group() as tasks:
        await tasks.start(listening.listen, postgres)
        async with open_database(postgres_url) as stopped:
            with pytest.raises(StoreUnavailable):
                await stop(stopped)
        tasks.cancel_scope.cancel()


async def test_a_session_that_works_or_copies_is_not_taken_for_stuck(
    postgres: Database, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stuck_sessions, "SENDS_NOTHING_FOR_S", 0.2)
    monkeypatch.setattr(stuck_sessions, "READS_FOR_S", 0.2)
    assert postgres.primary is not None
    lock = "LOCK TABLE stream IN ROW EXCLUSIVE MODE"
    sessions = [await postgres.primary.connect() for _ in range(5)]
    looking, working, copying, reading, by_hand = sessions
    try:
        await working.execute(f"BEGIN; {lock}")
        await copying.execute(f"BEGIN; {lock}")
        await by_hand.execute(f"SET idle_in_transaction_session_timeout = 0; BEGIN; {lock}")
        await reading.execute("BEGIN; SELECT count(*) FROM stream")
        await reading.prepare("SELECT 42")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(working.execute, "SELECT pg_sleep(1); COMMIT")

            async def copy() -> None:
                async def rows() -> AsyncIterator[bytes]:
                    await anyio.sleep(1)
                    yield b"one\tone\t0\t0\n"

                await copying.copy_to_table(
                    "stream", source=rows(), columns=["digest", "key", "epoch", "incarnation"]
                )

            tasks.start_soon(copy)
            await anyio.sleep(0.5)
            await stuck_sessions.end_stuck_sessions(looking)
        for one in (working, copying, reading, by_hand):
            assert await one.fetchval("SELECT 1") == 1
    finally:
        for one in sessions:
            one.terminate()
