"""Receives what other processes announce, for as long as the service lives."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import anyio
import asyncpg
from anyio.abc import TaskStatus

from triggerer.backoff import Backoff, warn_seldom
from triggerer.logging_setup import LazyLogger
from triggerer.store.engine.database import Database
from triggerer.store.engine.engines import asyncpg_options
from triggerer.store.wakeups import transport
from triggerer.store.wakeups.signals import Wakeups

_log = LazyLogger(__name__)

_MAX_DATAGRAM: Final = 65_536
# A server that vanished without closing its socket is noticed after this.
_LIVENESS: Final = timedelta(seconds=30)


async def listen(
    database: Database,
    wakeups: Wakeups | None = None,
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Publish other processes' announcements until cancelled; started once it listens.

    If a connection to PostgreSQL is lost, it is opened again, with growing delays. All subscribers are then woken about
    everything, since announcements made meanwhile are lost. On SQLite the caller holds `lock_exclusively`, so there is
    one listener for each database.
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
        # A standalone that was killed left it behind. No other one is alive: we hold the lock.
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


async def _listen_on_postgres(
    database: Database, wakeups: Wakeups, task_status: TaskStatus[None]
) -> None:
    options = asyncpg_options(database.url)
    options["server_settings"] = {"application_name": "triggerer listener"}
    started = False
    backoff = Backoff(first=0.2, longest=5.0)
    while True:
        try:
            connection = await asyncpg.connect(**options)
            try:
                lost = anyio.Event()

                def hear(_connection: Any, _pid: int, _channel: str, payload: Any) -> None:
                    database.transport.receive(str(payload), wakeups)

                def lose(_connection: Any, lost: anyio.Event = lost) -> None:
                    lost.set()

                connection.add_termination_listener(lose)
                await connection.add_listener(transport.CHANNEL, hear)
                wakeups.publish_everything()
                backoff.reset()
                if not started:
                    started = True
                    task_status.started()
                await _until_lost(connection, lost)
            finally:
                connection.terminate()
        except (
            OSError,
            TimeoutError,
            asyncpg.PostgresError,
            asyncpg.InterfaceError,
            asyncpg.InternalClientError,
        ) as error:
            delay = backoff.next_delay()
            warn_seldom(
                _log,
                backoff.failures,
                "the database does not announce",
                error=str(error),
                retry_after_s=round(delay, 3),
            )
            if not started:
                # Also before the first success: `publish_everything` makes up for what is missed.
                started = True
                task_status.started()
        else:
            delay = backoff.next_delay()
        await anyio.sleep(delay)


async def _until_lost(connection: Any, lost: anyio.Event) -> None:
    """Return when the connection is closed; raise if it no longer answers."""
    while not lost.is_set():
        with anyio.move_on_after(_LIVENESS.total_seconds()):
            await lost.wait()
            return
        await connection.execute("SELECT 1", timeout=10)
