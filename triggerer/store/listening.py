"""Receives what other processes announce, for as long as the service lives."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import anyio
import asyncpg
from anyio.abc import TaskStatus

from triggerer.logging_setup import LazyLogger
from triggerer.store import relay
from triggerer.store.database import Database
from triggerer.store.engines import asyncpg_options
from triggerer.store.wakeups import Wakeups

_log = LazyLogger(__name__)

_FIRST_DELAY_S: Final = 0.2
_LONGEST_DELAY_S: Final = 5.0
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

    On PostgreSQL a lost connection is made again with growing delays, and everybody is then woken
    about everything, since what was announced meanwhile is gone. On SQLite the caller holds
    `lock_exclusively`: there is one listener for each database.
    """
    wakeups = wakeups or database.wakeups
    if database.dialect == "sqlite":
        await _listen_on_socket(database, wakeups, task_status)
    else:
        await _listen_on_postgres(database, wakeups, task_status)


async def _listen_on_socket(
    database: Database, wakeups: Wakeups, task_status: TaskStatus[None]
) -> None:
    path = database.relay.socket_path
    assert path is not None
    with relay.datagram_socket() as receiver:
        # Left behind by a standalone that was killed; a living one holds the lock that we hold.
        path.unlink(missing_ok=True)
        with relay.short_path(path) as address:
            receiver.bind(address)
        path.chmod(0o600)
        database.relay.is_listening = True
        try:
            task_status.started()
            while True:
                await anyio.wait_readable(receiver)
                with suppress(BlockingIOError):
                    database.relay.receive(receiver.recv(_MAX_DATAGRAM), wakeups)
        finally:
            database.relay.is_listening = False
            path.unlink(missing_ok=True)


async def _listen_on_postgres(
    database: Database, wakeups: Wakeups, task_status: TaskStatus[None]
) -> None:
    options = asyncpg_options(database.url)
    options["server_settings"] = {"application_name": "triggerer listener"}
    started = False
    delay = _FIRST_DELAY_S
    while True:
        try:
            connection = await asyncpg.connect(**options)
            try:
                lost = anyio.Event()

                def hear(_connection: Any, _pid: int, _channel: str, payload: Any) -> None:
                    database.relay.receive(str(payload), wakeups)

                def lose(_connection: Any, lost: anyio.Event = lost) -> None:
                    lost.set()

                connection.add_termination_listener(lose)
                await connection.add_listener(relay.CHANNEL, hear)
                wakeups.publish_everything()
                delay = _FIRST_DELAY_S
                if not started:
                    started = True
                    task_status.started()
                await _until_lost(connection, lost)
            finally:
                connection.terminate()
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            _log.warning("the database does not announce", error=str(error), retry_after_s=delay)
            if not started:
                # Before the first success too: `publish_everything` makes up for what is missed.
                started = True
                task_status.started()
        await anyio.sleep(delay)
        delay = min(delay * 2, _LONGEST_DELAY_S)


async def _until_lost(connection: Any, lost: anyio.Event) -> None:
    """Return when the connection is closed; raise when it no longer answers."""
    while not lost.is_set():
        with anyio.move_on_after(_LIVENESS.total_seconds()):
            await lost.wait()
            return
        await connection.execute("SELECT 1", timeout=10)
