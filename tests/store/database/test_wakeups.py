import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from sqlalchemy import text

from tests.services.databases.postgres import PostgresServer
from tests.store.seeding import add_asset
from triggerer.store.database.opening import open_database
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups.listening import listen
from triggerer.store.database.wakeups.signals import (
    ALL,
    Announced,
    Signal,
    Subscription,
    Wakeups,
    announce,
)
from triggerer.store.database.wakeups.transport import MAX_PAYLOAD


async def _next(subscription: Subscription) -> Announced:
    woken = await subscription.wait(timedelta(seconds=10))
    assert woken, "nobody was woken"
    return woken


async def test_announcements_between_two_waits_are_merged_and_not_lost() -> None:
    wakeups = Wakeups()
    subscription = wakeups.subscribe(Signal.EVENTS_QUEUED, Signal.RUNS_ENDED)
    wakeups.publish(Signal.EVENTS_QUEUED, "a")
    wakeups.publish(Signal.EVENTS_QUEUED, "b", "a")
    wakeups.publish(Signal.RUNS_ENDED)
    wakeups.publish(Signal.DAGS_CHANGED, "not asked for")
    assert await subscription.wait() == {
        Signal.EVENTS_QUEUED: {"a", "b"},
        Signal.RUNS_ENDED: {ALL},
    }
    assert await subscription.wait(timedelta()) == {}


async def test_a_cancelled_wait_loses_nothing() -> None:
    wakeups = Wakeups()
    subscription = wakeups.subscribe(Signal.RUNS_QUEUED)
    with anyio.CancelScope() as scope:
        scope.cancel()
        wakeups.publish(Signal.RUNS_QUEUED, "a")
        await subscription.wait()
    assert await subscription.wait() == {Signal.RUNS_QUEUED: {"a"}}


async def test_a_publication_while_somebody_waits_wakes_it() -> None:
    wakeups = Wakeups()
    subscription = wakeups.subscribe(Signal.RUNS_QUEUED)
    woken: list[Announced] = []

    async def wait() -> None:
        woken.append(await subscription.wait())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        wakeups.publish(Signal.RUNS_QUEUED, "a")
    assert woken == [{Signal.RUNS_QUEUED: {"a"}}]


def test_a_subscription_that_nobody_reads_stays_small() -> None:
    wakeups = Wakeups()
    subscription = wakeups.subscribe(Signal.EVENTS_QUEUED)
    for number in range(30_000):
        wakeups.publish(Signal.EVENTS_QUEUED, str(number))
    taken = subscription.take_nowait()
    assert ALL in taken[Signal.EVENTS_QUEUED]
    assert len(taken[Signal.EVENTS_QUEUED]) <= 10_001


def test_a_closed_subscription_hears_nothing() -> None:
    wakeups = Wakeups()
    with wakeups.subscribe(Signal.EVENTS_QUEUED) as subscription:
        pass
    wakeups.publish(Signal.EVENTS_QUEUED, "a")
    assert subscription.take_nowait() == {}


async def _announce(database: Database, *subjects: str) -> None:
    async with database.transaction() as session:
        announce(session, Signal.DAGS_CHANGED, *subjects)


async def test_a_commit_is_heard_in_another_process_and_its_own_is_not_doubled(
    store_url: str, database: Database
) -> None:
    subscription = database.wakeups.subscribe(Signal.DAGS_CHANGED)
    async with open_database(store_url) as other, anyio.create_task_group() as tasks:
        await tasks.start(listen, database)
        subscription.take_nowait()
        await _announce(database, "own")
        assert await _next(subscription) == {Signal.DAGS_CHANGED: {"own"}}
        await _announce(other, "theirs")
        # If our own announcement had come back too, it would come first here.
        assert await _next(subscription) == {Signal.DAGS_CHANGED: {"theirs"}}
        await _announce(other, *(f"dag-{n:05}" for n in range(MAX_PAYLOAD // 5)))
        assert await _next(subscription) == {Signal.DAGS_CHANGED: {ALL}}
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("option", ["sslmode=prefer", "prepared_statement_cache_size=0"])
async def test_a_url_with_options_is_listened_to_as_well(postgres_url: str, option: str) -> None:
    url = f"{postgres_url}?{option}"
    async with open_database(url) as database, open_database(url) as other:
        subscription = database.wakeups.subscribe(Signal.DAGS_CHANGED)
        async with anyio.create_task_group() as tasks:
            await tasks.start(listen, database)
            subscription.take_nowait()
            await _announce(other, "theirs")
            assert await _next(subscription) == {Signal.DAGS_CHANGED: {"theirs"}}
            tasks.cancel_scope.cancel()


async def test_a_command_beside_a_standalone_wakes_it(sqlite: Database) -> None:
    script = f"""
import anyio
from triggerer.store.database.opening import open_database
from triggerer.store.database.wakeups.signals import Signal, announce

async def main():
    async with open_database("sqlite:///{sqlite.path}") as database:
        async with database.transaction() as session:
            announce(session, Signal.DAGS_CHANGED, "unpaused")

anyio.run(main)
"""
    subscription = sqlite.wakeups.subscribe(Signal.DAGS_CHANGED)
    async with anyio.create_task_group() as tasks:
        await tasks.start(listen, sqlite)
        await anyio.run_process([sys.executable, "-c", script], stderr=subprocess.STDOUT)
        assert await _next(subscription) == {Signal.DAGS_CHANGED: {"unpaused"}}
        tasks.cancel_scope.cancel()


async def test_a_socket_left_behind_by_a_killed_standalone_is_no_hindrance(
    sqlite: Database,
) -> None:
    path = sqlite.transport.socket_path
    assert path is not None
    path.touch()
    # Nobody listens at this path, but the commit succeeds.
    await _announce(sqlite, "a")
    async with anyio.create_task_group() as tasks:
        await tasks.start(listen, sqlite)
        tasks.cancel_scope.cancel()
    assert not path.exists()


async def test_a_folder_with_a_long_name_has_a_socket_too(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 200)
    url = f"sqlite:///{folder / 'triggerer.db'}"
    async with open_database(url) as database, open_database(url) as command:
        subscription = database.wakeups.subscribe(Signal.DAGS_CHANGED)
        async with anyio.create_task_group() as tasks:
            await tasks.start(listen, database)
            await _announce(command, "a")
            assert await _next(subscription) == {Signal.DAGS_CHANGED: {"a"}}
            tasks.cancel_scope.cancel()


async def test_a_flood_of_announcements_is_merged_and_not_lost(sqlite_url: str) -> None:
    async with open_database(sqlite_url) as database, open_database(sqlite_url) as command:
        subscription = database.wakeups.subscribe(Signal.DAGS_CHANGED)
        heard: set[str] = set()
        wanted = {f"dag-{number}" for number in range(300)}

        async def hear() -> None:
            while not heard >= wanted:
                heard.update((await _next(subscription)).get(Signal.DAGS_CHANGED, ()))

        async with anyio.create_task_group() as tasks:
            await tasks.start(listen, database)
            async with anyio.create_task_group() as hearing:
                hearing.start_soon(hear)
                for dag_id in wanted:
                    await command.transport.send({Signal.DAGS_CHANGED: {dag_id}})
            tasks.cancel_scope.cancel()
        assert heard == wanted


async def test_after_a_lost_connection_everybody_looks_at_everything(
    postgres: Database, postgres_server: PostgresServer
) -> None:
    subscription = postgres.wakeups.subscribe(*Signal)
    async with anyio.create_task_group() as tasks:
        await tasks.start(listen, postgres)
        subscription.take_nowait()
        await anyio.to_thread.run_sync(postgres_server.stop)
        await anyio.to_thread.run_sync(postgres_server.start)
        with anyio.fail_after(30):
            woken = await subscription.wait()
        assert woken == {signal: {ALL} for signal in Signal}
        tasks.cancel_scope.cancel()


async def test_a_listener_may_idle_although_idle_sessions_are_ended(postgres: Database) -> None:
    async def alter(what: str) -> None:
        async with postgres.transaction() as session:
            name = await session.scalar(text("SELECT current_database()"))
            await session.execute(text(f'ALTER DATABASE "{name}" {what}'))

    # The setting applies to connections that are opened from now on.
    await alter("SET idle_session_timeout = 50")
    try:
        subscription = postgres.wakeups.subscribe(*Signal)
        async with anyio.create_task_group() as tasks:
            await tasks.start(listen, postgres)
            subscription.take_nowait()
            # If the server closed the listening connection, opening it again would wake every subscription.
            assert not await subscription.wait(timedelta(seconds=1))
            tasks.cancel_scope.cancel()
    finally:
        await alter("RESET idle_session_timeout")


@pytest.mark.parametrize(
    "message", ["not json", "[1]", '{"unknown": ["a"]}', '{"events_queued": 1}']
)
async def test_an_announcement_that_cannot_be_read_wakes_everybody(
    sqlite: Database, message: str
) -> None:
    subscription = sqlite.wakeups.subscribe(Signal.EVENTS_QUEUED)
    sqlite.transport.receive(message, sqlite.wakeups)
    assert subscription.take_nowait() == {Signal.EVENTS_QUEUED: {ALL}}


async def test_a_commit_without_an_announcement_wakes_nobody(database: Database) -> None:
    subscription = database.wakeups.subscribe(*Signal)
    await add_asset(database, 1, "flights")
    assert subscription.take_nowait() == {}
