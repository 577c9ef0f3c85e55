"""Listens for other processes' announcements of commits, and passes them on as wake-ups within this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, Final

import anyio
import asyncpg
from anyio.abc import TaskStatus

from triggerer.backoff import Backoff, warn_seldom
from triggerer.errors import ConfigurationError, StoreUnavailable
from triggerer.observability.logging_setup import LazyLogger
from triggerer.store.database.driver_errors import POOLER, translated
from triggerer.store.database.postgres.primary import close
from triggerer.store.database.postgres.stuck_sessions import end_stuck_sessions
from triggerer.store.database.script import literal
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups import transport
from triggerer.store.database.wakeups.signals import Wakeups

_log = LazyLogger(__name__)

_MAX_DATAGRAM: Final = 65_536
# How often to end stuck sessions and to look for a promoted server. A server may have been promoted while the former
# primary still answers.
_CHECK_INTERVAL: Final = timedelta(seconds=5)
# A server may vanish without closing its socket. So every sixth check (every 30 seconds) sends a test announcement. If
# it does not arrive here, the connection is replaced.
_CHECKS_PER_TEST: Final = 6
_HEARING_TIMEOUT: Final = timedelta(seconds=10)
_ANSWER_S: Final = 10.0
# Turns off `idle_session_timeout`, by which operators close forgotten connections. The listening connection is idle on
# purpose. PostgreSQL before 14 lacks the setting, and there this query does nothing.
_ALLOW_IDLE: Final = (
    "SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'idle_session_timeout'"
)
_DRIVER_ERRORS: Final = (
    OSError,
    TimeoutError,
    StoreUnavailable,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)


async def listen(
    database: Database,
    wakeups: Wakeups | None = None,
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Publish other processes' announcements as wake-ups until cancelled.

    A lost connection to PostgreSQL is opened again, with growing delays. All subscribers are then woken for all
    subjects, because announcements may have been missed.

    On SQLite the caller must have called `lock_exclusively`. There is one socket for announcements, and a second
    listener would take it over.

    Args:
        wakeups: Where to publish. None: `database.wakeups`.
        task_status: Started once this process listens, or once the first attempt to connect has failed.
    """
    wakeups = wakeups or database.wakeups
    if database.dialect == "sqlite":
        await _listen_on_socket(database, wakeups, task_status)
    else:
        await _listen_on_postgres(database, wakeups, task_status)


async def _listen_on_socket(
    database: Database, wakeups: Wakeups, task_status: TaskStatus[None]
) -> None:
    path = database.transport.socket_path
    assert path is not None
    with transport.datagram_socket() as receiver:
        # Remove the socket that a killed `triggerer standalone` left behind. No process listens on it, because this
        # process has the database's lock.
        path.unlink(missing_ok=True)
        with transport.short_path(path) as address:
            receiver.bind(address)
        path.chmod(0o600)
        database.transport.is_listening = True
        try:
            task_status.started()
            while True:
                await anyio.wait_readable(receiver)
                with suppress(BlockingIOError):
                    database.transport.receive(receiver.recv(_MAX_DATAGRAM), wakeups)
        finally:
            database.transport.is_listening = False
            path.unlink(missing_ok=True)


async def check_announcements(database: Database) -> None:
    """Check that one connection to the database receives the announcements of another. SQLite needs no check.

    Raises:
        ConfigurationError: No announcement arrives. For instance, a pooler in transaction mode uses another connection
            for each transaction. The service would then notice changes only in its sweeps.
        StoreUnavailable: The database is away.
    """
    if database.dialect == "sqlite":
        return
    assert database.primary is not None
    with translated(database.name):
        # If several servers take writes, find the server that was promoted last, before anything is written.
        await database.primary.check_for_promotion()
        async with _open_listener(database, Wakeups()) as listener:
            # The locks of a stuck session would delay a migration of the tables.
            await end_stuck_sessions(listener.connection)
            heard = await listener.hears(database)
    if listener.lost.is_set():
        raise StoreUnavailable(f"{database.name} closed the connection", hint="is it running?")
    if not heard:
        raise ConfigurationError(
            f"{database.name} delivers no announcements (NOTIFY) to listeners (LISTEN)", hint=POOLER
        )


class _Listener:
    """A connection to PostgreSQL that listens for announcements (LISTEN)."""

    def __init__(self, connection: Any) -> None:
        self.connection: Final = connection
        self.lost: Final = anyio.Event()
        self._heard = anyio.Event()

    async def listen(self, database: Database, wakeups: Wakeups) -> None:
        test_payload = _test_payload(database)

        def hear(_connection: Any, _pid: int, _channel: str, payload: Any) -> None:
            if payload == test_payload:
                self._heard.set()
            else:
                database.transport.receive(str(payload), wakeups)

        self.connection.add_termination_listener(lambda _: self.lost.set())
        await self.connection.execute(_ALLOW_IDLE)
        await self.connection.add_listener(transport.CHANNEL, hear)

    async def hears(self, database: Database) -> bool:
        """Send a test announcement over another connection; return True if this connection receives it."""
        self._heard = anyio.Event()
        assert database.primary is not None
        other = await database.primary.connect()
        try:
            await other.execute(
                f"NOTIFY {transport.CHANNEL}, {literal(_test_payload(database))}", timeout=_ANSWER_S
            )
        finally:
            with anyio.CancelScope(shield=True):
                await close(other)
        with anyio.move_on_after(_HEARING_TIMEOUT.total_seconds()):
            await self._heard.wait()
        return self._heard.is_set()


def _test_payload(database: Database) -> str:
    # The test announcement names no signal. Other processes receive it too, and ignore it.
    return database.transport.encode({})


@asynccontextmanager
async def _open_listener(database: Database, wakeups: Wakeups) -> AsyncIterator[_Listener]:
    assert database.primary is not None
    listener = _Listener(await database.primary.connect("triggerer listener"))
    try:
        await listener.listen(database, wakeups)
        yield listener
    finally:
        listener.connection.terminate()


async def _listen_on_postgres(
    database: Database, wakeups: Wakeups, task_status: TaskStatus[None]
) -> None:
    started = False
    backoff = Backoff(first=0.2, longest=5.0)
    while True:
        try:
            async with _open_listener(database, wakeups) as listener:
                wakeups.publish_everything()
                if not started:
                    started = True
                    task_status.started()
                reason = await _until_lost(database, listener, backoff)
        except _DRIVER_ERRORS as error:
            reason = str(error)
            if not started:
                # Report the start although there is no connection, so that the caller need not wait for the database.
                # Once there is a connection, `publish_everything` makes up for the missed announcements.
                started = True
                task_status.started()
        delay = backoff.next_delay()
        warn_seldom(
            _log,
            backoff.failures,
            "announcements of the database do not arrive",
            error=reason,
            retry_after_s=round(delay, 3),
        )
        await anyio.sleep(delay)


async def _until_lost(database: Database, listener: _Listener, backoff: Backoff) -> str:
    """Check the connection every five seconds; return the reason once it must be replaced.

    Raises:
        OSError, TimeoutError, StoreUnavailable, asyncpg.PostgresError: The database no longer answers.
    """
    primary = database.primary
    assert primary is not None
    checks = 0
    while not listener.lost.is_set():
        with anyio.move_on_after(_CHECK_INTERVAL.total_seconds()):
            await listener.lost.wait()
            break
        checks += 1
        await end_stuck_sessions(listener.connection)
        if checks % _CHECKS_PER_TEST:
            await primary.check_for_promotion()
        elif not await _hears(database, listener):
            return f"announcements do not arrive; {POOLER}"
        if not primary.is_current(listener.connection):
            return "another server is the primary"
        backoff.reset()
    return "the server closed the connection"


async def _hears(database: Database, listener: _Listener) -> bool:
    try:
        return await listener.hears(database)
    except _DRIVER_ERRORS:
        # The test announcement could not be sent, for instance because the server has no free connection. Keep the
        # listening connection if it still answers a query.
        await listener.connection.execute("SELECT 1", timeout=_ANSWER_S)
        return True
