"""Runs the service, from the check of its settings to the signal that stops it."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from importlib.util import find_spec
from typing import Final

import anyio
import structlog

from triggerer.config import Settings
from triggerer.domain.actors import SERVICE, Actor, Role
from triggerer.errors import ConfigurationError, PluginError
from triggerer.operations.connections import share_connections
from triggerer.operations.migrating import migrate
from triggerer.operations.reading.service_settings import publish_settings
from triggerer.processes.signals import Interrupted, handling_stop_signals
from triggerer.service.parts import ALL_PARTS, Part, start_api, start_parts
from triggerer.service.sd_notify import SystemdNotifier
from triggerer.service.status import Readiness, status_served
from triggerer.service.supervising import retry_while_unavailable, unless_it_returns
from triggerer.store.dags.listing import count_definitions
from triggerer.store.database.opening import open_database
from triggerer.store.database.sqlite.exclusive import lock_exclusively
from triggerer.store.database.transactions import Database
from triggerer.store.database.urls import parse_database_url
from triggerer.store.database.wakeups.listening import check_announcements, listen
from triggerer.store.streams.leases import forget_instances
from triggerer.worker.spark.settings import mode_of

_log = structlog.get_logger(__name__)


class StopReason(Enum):
    """Why `run` returned."""

    WORK_DONE = auto()
    ASKED_TO = auto()


@dataclass(frozen=True, slots=True)
class Service:
    """A service that has started."""

    database: Database
    settings: Settings


Work = Callable[[Service], Awaitable[None]]


GC_THRESHOLDS: Final = (200_000, 20, 100)
"""The garbage collector runs once there are 200,000 new objects. Messages in flight are many small objects, which live
for milliseconds. With 700 objects, the default of Python 3.11, collections took a quarter of the event loop's time;
with 50,000 objects, a tenth.
"""
_SWITCH_INTERVAL_S: Final = 0.0005


def run(
    settings: Settings,
    parts: frozenset[Part],
    work: Work | None = None,
    *,
    on_end: Callable[[], None] = lambda: None,
) -> StopReason:
    """Serve until a signal comes or, with `work`, until `work` returns.

    Args:
        work: Called once the service has started. The service stops when `work` returns.
        on_end: Called when everything has ended, also after an error. Only threads of watchers (`asyncio.to_thread`)
            may still run. After `on_end`, Python waits for these threads without limit.
    Raises:
        ConfigurationError: Another service uses the database, the configured DAGs folder does not exist, or a setting
            is wrong. Or the database is SQLite, and `parts` lacks a part.
        StoreUnavailable: The database does not answer at the start. A running service waits for the database instead.
        PluginError: Code of a plugin ended the event loop.
    """
    _refuse_separate_services_on_sqlite(settings, parts)
    if Part.DAG_PROCESSOR in parts and settings.is_dags_folder_configured:
        # Fail now if the configured folder does not exist, because its name is most likely mistyped. The default folder
        # may be created later.
        settings.get_dags_folder()
    if Part.EXECUTOR in parts:
        # Check Spark's mode now, so that a wrong mode fails the start of the service, and not a run.
        mode_of(settings.spark)
    gc.set_threshold(*GC_THRESHOLDS)
    # SQLite's thread needs the interpreter's lock after each statement. A busy event loop keeps the lock for the switch
    # interval. With Python's default (5 ms), SQLite would be slow. The price of 0.5 ms: a service reads 3 to 6 % fewer
    # messages per second from a backlog.
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    share_connections(settings)
    notifier = SystemdNotifier.from_environment(os.environ)
    try:
        return anyio.run(
            partial(_serve, settings, parts, work, notifier, on_end),
            backend_options={"use_uvloop": _has_uvloop()},
        )
    except Interrupted:
        # The signal came before `_serve` listened for signals, or after `_serve` had ended.
        raise
    except (SystemExit, KeyboardInterrupt) as error:
        # `_serve` handles signals, so code of a plugin has raised this exception. Do not exit with the plugin's exit
        # code, because a service manager could take 0 for an orderly stop.
        _log.error("code of a plugin ended the event loop", error=repr(error), exc_info=error)
        raise PluginError(
            f"a task or a callback of a plugin raised {error!r}, which ends the service",
            hint="the log shows where; run its trigger in a process of its own (docs/howto/blocking-watcher.md)",
        ) from error


async def _serve(
    settings: Settings,
    parts: frozenset[Part],
    work: Work | None,
    notifier: SystemdNotifier,
    on_end: Callable[[], None],
) -> StopReason:
    loop = asyncio.get_running_loop()
    until_asked = anyio.CancelScope()
    names = ", ".join(part.value for part in sorted(parts))

    def obey(signum: int) -> None:
        name = signal.Signals(signum).name
        _log.info("stopping", signal=name)
        notifier.tell_stopping(f"Stopping: {name}")
        stop.cancel()

    def tell(signum: int) -> None:
        loop.call_soon_threadsafe(obey, signum)

    with handling_stop_signals(tell), anyio.CancelScope() as stop, ExitStack() as at_end:
        at_end.callback(on_end)
        notifier.tell_status(f"Starting {names}")
        # A signal during the start cancels the start: nothing is in flight yet.
        async with open_service(settings, parts) as service, notifier.serving(f"Running {names}"):
            _show_outages(service.database, notifier, f"Running {names}")
            stop = until_asked
            with until_asked:
                if work is None:
                    await anyio.sleep_forever()
                else:
                    await work(service)
    return StopReason.ASKED_TO if stop.cancel_called else StopReason.WORK_DONE


def _show_outages(database: Database, notifier: SystemdNotifier, status: str) -> None:
    availability = database.availability

    def show() -> None:
        trouble = availability.trouble
        notifier.tell_status(status if trouble is None else f"{status}; {trouble}")

    availability.on_change = show
    if availability.trouble is not None:
        show()


def _is_served(settings: Settings) -> bool:
    """Return whether the database is a server. A server may refuse a login at first, until its setup is complete."""
    url = parse_database_url(settings.database.url, home=settings.core.home)
    return url.get_backend_name() != "sqlite"


@asynccontextmanager
async def open_service(settings: Settings, parts: frozenset[Part]) -> AsyncIterator[Service]:
    """Start the given parts. Leaving the block stops them in order.

    Raises:
        ConfigurationError, StoreUnavailable: As `run`.
        ExceptionGroup: A part failed; the block was cancelled.
    """
    patience = settings.database.start_timeout
    start = partial(
        retry_while_unavailable, patience=patience, retries_refusals=_is_served(settings)
    )
    if Part.SCHEDULER in parts and settings.notify.urls:
        from triggerer.notifications.sending import check_targets

        await check_targets(settings.resolve_targets())
    async with AsyncExitStack() as stack:
        database = await start(lambda: _open_database(settings, stack))
        readiness = Readiness()
        with lock_exclusively(database), status_served(settings, database, readiness):
            # Bind the port after locking the database. So a second service fails with an error that names the first
            # service, and not the port.
            listener = _listener(settings, parts, stack)
            await start(lambda: _prepare(database, settings, listener))
            # The parts in the group `workers` need the tasks in the group `background` until their work is finished.
            # So `background` ends last.
            async with anyio.create_task_group() as background:
                await background.start(unless_it_returns, "wakeups", partial(listen, database))
                async with anyio.create_task_group() as workers:
                    await start_parts(settings, parts, database, background, workers, readiness)
                    if listener is not None:
                        await start_api(settings, parts, database, workers, listener)
                    # Imported modules are never garbage, so collections need not look at them.
                    gc.freeze()
                    _log.info(
                        "started",
                        summary=await start(lambda: _summary(database)),
                        hint="look with: triggerer dags list, watchers list, runs list",
                        parts=[part.value for part in sorted(parts)],
                        database=database.name,
                    )
                    readiness.is_started = True
                    yield Service(database, settings)
                    readiness.is_started = False
                    workers.cancel_scope.cancel()
                background.cancel_scope.cancel()


def _listener(
    settings: Settings, parts: frozenset[Part], stack: AsyncExitStack
) -> socket.socket | None:
    """Bind the API's socket before any part starts, so that a taken port is noticed while there is nothing to stop."""
    if Part.API not in parts:
        return None
    from triggerer.api.listening import open_listener

    return stack.enter_context(open_listener(settings.api, home=settings.core.home))


async def _open_database(settings: Settings, stack: AsyncExitStack) -> Database:
    return await stack.enter_async_context(
        open_database(
            settings.database.url,
            home=settings.core.home,
            commit_timeout=settings.database.commit_timeout,
        )
    )


async def _prepare(database: Database, settings: Settings, listener: socket.socket | None) -> None:
    await check_announcements(database)
    # On SQLite, the exclusive lock of this process proves that every registered instance is dead.
    is_alone = database.dialect == "sqlite"
    await migrate(database, Actor("service", Role.ADMIN, SERVICE), is_alone=is_alone)
    if is_alone:
        # Free the streams of dead instances before the leases expire.
        async with database.transaction() as session:
            await forget_instances(session)
    async with database.transaction() as session:
        await publish_settings(session, settings)
    if listener is not None:
        from triggerer.api.listening import url_of
        from triggerer.service.api_part import prepare_access

        await prepare_access(settings, database, url_of(listener, settings.api))


async def _summary(database: Database) -> str:
    """Return the number of DAGs, watchers and broken files, for the log."""
    async with database.reading() as session:
        found = await count_definitions(session)
    dags = f"{found.dags} {'DAG' if found.dags == 1 else 'DAGs'}"
    watchers = f"{found.watchers} {'watcher' if found.watchers == 1 else 'watchers'}"
    if not found.broken_files:
        return f"{dags}, {watchers}"
    files = "1 file has" if found.broken_files == 1 else f"{found.broken_files} files have"
    return f"{dags}, {watchers}; {files} errors: triggerer check"


def _refuse_separate_services_on_sqlite(settings: Settings, parts: frozenset[Part]) -> None:
    url = parse_database_url(settings.database.url, home=settings.core.home)
    if url.get_backend_name() == "sqlite" and parts != ALL_PARTS:
        raise ConfigurationError(
            f"`triggerer {min(parts)}` cannot run on SQLite, which one process alone may write to",
            hint="run `triggerer standalone`, or set [database] url to a PostgreSQL database",
        )


def _has_uvloop() -> bool:
    return find_spec("uvloop") is not None
