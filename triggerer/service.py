"""The service, wired by hand: what each part is given, what becomes of its failure, how it stops.

Parts and their failures
    Each part rides out what passes by itself: a database or a broker that is away, a child that
    dies. What a part still raises is an error that nobody foresaw, and so is a part that returns
    unasked. Then the whole process stops, with the error and exit code 1, and systemd or a container
    starts it again: all that counts is in the database, while restarting one part in place would
    leave the others with what the broken one held.

Stopping, at the first SIGTERM or SIGINT
    1. Nothing new: DAG files, streams, scheduler and executor stop taking work. Streams wait for
       what is in flight, and the recorder still runs, since that is what they wait for; runs may
       end. Each has `[core] shutdown_grace` for it.
    2. What is left is cancelled; then the recorder and the wakeups stop. Nothing is lost: the broker
       redelivers what it was not told, and runs are queued again.
    A second signal ends the process on the spot, as SIGKILL would, which it is made to survive;
    its children notice and end.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from enum import Enum, StrEnum, auto
from functools import partial
from importlib.util import find_spec
from typing import Final, NoReturn, Protocol, TypeVar
from uuid import uuid4

import anyio
import structlog
from anyio.abc import TaskGroup, TaskStatus

from triggerer.abc import install_connections
from triggerer.config import CONFIG_VARIABLE, Settings
from triggerer.errors import (
    ConfigurationError,
    Conflict,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
)
from triggerer.spark.settings import mode_of
from triggerer.store.database import Database, open_database
from triggerer.store.exclusive import lock_exclusively
from triggerer.store.leases import forget_instances
from triggerer.store.listening import listen
from triggerer.store.migrate import upgrade
from triggerer.store.urls import parse_database_url

_log = structlog.get_logger(__name__)


class Part(StrEnum):
    """What may run as a service of its own, where the database is PostgreSQL."""

    TRIGGERER = "triggerer"
    SCHEDULER = "scheduler"
    DAG_PROCESSOR = "dag-processor"
    EXECUTOR = "executor"


ALL_PARTS: Final = frozenset(Part)
_GOODBYE_S: Final = 2.0
_ASK_AGAIN_S: Final = 0.5

T = TypeVar("T")


class Stopped(Enum):
    """Why `run` returned."""

    WORK_DONE = auto()
    ASKED_TO = auto()


@dataclass(frozen=True, slots=True)
class Service:
    """A service that has started."""

    database: Database
    settings: Settings


Work = Callable[[Service], Awaitable[None]]


class Runs(Protocol):
    """A part's life: until it is cancelled."""

    async def __call__(self, *, task_status: TaskStatus[None]) -> None: ...


_SWITCH_INTERVAL_S: Final = 0.0005


def run(settings: Settings, parts: frozenset[Part], work: Work | None = None) -> Stopped:
    """Serve until a signal comes, or, if there is `work` to do beside the service, until it is done.

    Raises:
        ConfigurationError: Separate services on SQLite, a database in use, or a wrong setting.
        StoreUnavailable: The database does not answer at the start; later that is waited out.
    """
    _refuse_separate_services_on_sqlite(settings, parts)
    if Part.EXECUTOR in parts:
        # Said now, and not by the first run that asks for a session.
        mode_of(settings.spark)
    # Events in flight are many small objects that live for milliseconds: looking for cycles among
    # them every 700 allocations took a quarter of the event loop's time.
    gc.set_threshold(20_000, 20, 100)
    # SQLite's thread wants the interpreter back after each of its statements, and a busy event loop
    # would let it wait for the default of 5 ms each time.
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    install_connections(settings.get_connection)
    if settings.file is not None:
        # Children have no --config; their `get_connection` reads the same file.
        os.environ[CONFIG_VARIABLE] = str(settings.file)
    return anyio.run(
        partial(_serve, settings, parts, work), backend_options={"use_uvloop": _has_uvloop()}
    )


async def _serve(settings: Settings, parts: frozenset[Part], work: Work | None) -> Stopped:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with anyio.create_task_group() as tasks:
            until_asked = anyio.CancelScope()
            # Before everything has started there is nothing in flight to wait for.
            stop = tasks.cancel_scope

            async def obey() -> None:
                first = await anext(signals)
                _log.info("stopping", signal=signal.Signals(first).name)
                stop.cancel()
                second = await anext(signals)
                _exit_on_the_spot(second)

            tasks.start_soon(obey)
            async with open_service(settings, parts) as service:
                stop = until_asked
                with until_asked:
                    if work is None:
                        await anyio.sleep_forever()
                    else:
                        await work(service)
            tasks.cancel_scope.cancel()
    return Stopped.ASKED_TO if stop.cancel_called else Stopped.WORK_DONE


@asynccontextmanager
async def open_service(settings: Settings, parts: frozenset[Part]) -> AsyncIterator[Service]:
    """Start these parts; stop them, in order, when the block is left.

    Raises:
        ConfigurationError, StoreUnavailable: As `run`.
        ExceptionGroup: A part failed; the block was cancelled.
    """
    patience = settings.database.start_timeout
    async with AsyncExitStack() as stack:
        database = await _once_it_answers(lambda: _open_database(settings, stack), patience)
        with lock_exclusively(database):
            await _once_it_answers(lambda: _prepare(database), patience)
            # The outer group ends last: those in the inner one need it to finish what they began.
            async with anyio.create_task_group() as carriers:
                await carriers.start(_unless_it_returns, "wakeups", partial(listen, database))
                async with anyio.create_task_group() as workers:
                    await _start_parts(settings, parts, database, carriers, workers)
                    # What was imported stays: no collection needs to look at it again.
                    gc.freeze()
                    _log.info("started", parts=sorted(parts), database=database.name)
                    yield Service(database, settings)
                    workers.cancel_scope.cancel()
                carriers.cancel_scope.cancel()


async def _open_database(settings: Settings, stack: AsyncExitStack) -> Database:
    return await stack.enter_async_context(
        open_database(
            settings.database.url,
            home=settings.core.home,
            commit_timeout=settings.database.commit_timeout,
        )
    )


async def _prepare(database: Database) -> None:
    await upgrade(database)
    if database.dialect == "sqlite":
        # The lock proves that whoever is registered is dead: nothing has to expire first.
        async with database.transaction() as session:
            await forget_instances(session)


async def _once_it_answers(ask: Callable[[], Awaitable[T]], patience: timedelta) -> T:
    """Repeat what needs the database until it answers: a service and its database may start together.

    Raises:
        StoreUnavailable: It did not within `patience`; the last error.
    """
    deadline = anyio.current_time() + patience.total_seconds()
    while True:
        try:
            return await ask()
        except StoreUnavailable as error:
            if anyio.current_time() >= deadline:
                raise
            _log.warning("waiting for the database", error=str(error))
            await anyio.sleep(_ASK_AGAIN_S)


async def _start_parts(
    settings: Settings,
    parts: frozenset[Part],
    database: Database,
    carriers: TaskGroup,
    workers: TaskGroup,
) -> None:
    """Start what this process hosts; every argument of every part is given here."""
    if Part.DAG_PROCESSOR in parts:
        await workers.start(_unless_it_returns, "dag-processor", _dag_processor(settings, database))
    if Part.TRIGGERER in parts:
        await _start_triggerer(settings, database, carriers, workers)
    if Part.SCHEDULER in parts:
        await workers.start(_unless_it_returns, "scheduler", _scheduler(settings, database))
    if Part.EXECUTOR in parts:
        await _start_executor(settings, database, carriers, workers)


async def _start_triggerer(
    settings: Settings, database: Database, carriers: TaskGroup, workers: TaskGroup
) -> None:
    from triggerer.hosting import TriggerHost
    from triggerer.hosting.host import HostSettings
    from triggerer.isolation import IsolationSettings
    from triggerer.plugins import load_trigger_class
    from triggerer.runtime import RuntimeSettings
    from triggerer.store.recorder import EventRecorder

    chosen = settings.triggerer
    # The recorder tells the host who was fenced, and the host is the recorder's source: late bound.
    recorder = EventRecorder(
        database,
        on_fenced=lambda fence: host.note_fenced(fence),  # noqa: PLW0108
    )
    host = TriggerHost(
        database,
        instance_id=_new_instance_id(),
        load_class=partial(
            load_trigger_class,
            dags_folder=settings.core.dags_folder,
            allowed_modules=settings.core.allowed_trigger_modules,
        ),
        sink=recorder,
        runtime=RuntimeSettings(
            ack_timeout=chosen.shared_stream_ack_timeout.total_seconds(),
            subscriber_queue_size=chosen.shared_stream_subscriber_queue_size,
            overflow_grace=chosen.shared_stream_overflow_grace.total_seconds(),
            max_outstanding=chosen.max_outstanding_events,
            max_outstanding_per_lane=chosen.max_outstanding_events_per_lane,
        ),
        settings=HostSettings(
            lease=chosen.lease_duration,
            heartbeat=chosen.lease_duration / 3,
            drain=settings.core.shutdown_grace,
            capacity=chosen.capacity,
            stall_threshold=chosen.stall_threshold,
        ),
        isolation=IsolationSettings(
            placements=chosen.isolation,
            dags_folder=settings.core.dags_folder,
            allowed_modules=settings.core.allowed_trigger_modules,
            log=settings.core,
        ),
        takes_over_at_once=database.dialect == "sqlite",
    )
    carriers.start_soon(_unless_it_returns, "recorder", _without_status(recorder.run))
    await workers.start(_unless_it_returns, "triggerer", host.run)


def _dag_processor(settings: Settings, database: Database) -> Runs:
    from triggerer.dag_processing.processor import DagProcessor

    return DagProcessor(
        database,
        dags_folder=settings.core.dags_folder,
        min_file_process_interval=settings.dag_processor.min_file_process_interval,
        allowed_modules=settings.core.allowed_trigger_modules,
        file_timeout=settings.dag_processor.parse_timeout,
    ).run


def _scheduler(settings: Settings, database: Database) -> Runs:
    from triggerer.scheduler.loop import Scheduler

    return Scheduler(
        database,
        max_dagruns_to_create_per_loop=settings.scheduler.max_dagruns_to_create_per_loop,
        sweep_interval=settings.scheduler.heartbeat_sec,
    ).run


async def _start_executor(
    settings: Settings, database: Database, carriers: TaskGroup, workers: TaskGroup
) -> None:
    from triggerer.execution.executor import Executor

    instance_id = _new_instance_id()
    expiry = settings.triggerer.lease_duration
    # Longer than the executor lives: others would take its last runs for a dead one's.
    await carriers.start(
        _unless_it_returns,
        "registration",
        partial(_stay_registered, database, instance_id, expiry, settings.database.start_timeout),
    )
    executor = Executor(
        database,
        database.wakeups,
        instance_id=instance_id,
        home=settings.core.home,
        dags_folder=settings.core.dags_folder,
        workers=settings.executor.workers,
        spark=asdict(settings.spark),
        prewarm=settings.executor.prewarm,
        shutdown_grace=settings.core.shutdown_grace,
    )
    await workers.start(_unless_it_returns, "executor", executor.run)


async def _stay_registered(
    database: Database,
    instance_id: str,
    expiry: timedelta,
    patience: timedelta,
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Show this executor as alive until cancelled, so that nobody queues its runs again."""
    from triggerer.store import leases

    async def beat() -> None:
        # Registering anew is a heartbeat, and brings back a row that others took for a dead one's:
        # what they did with our runs meanwhile is fenced by the runs' attempts.
        async with database.transaction() as session:
            await leases.register_instance(session, instance_id, kind=Part.EXECUTOR, expiry=expiry)

    await _once_it_answers(beat, patience)
    task_status.started()
    try:
        while True:
            await anyio.sleep(expiry.total_seconds() / 3)
            try:
                await beat()
            except (StoreUnavailable, Conflict, OutcomeUnknown) as error:
                _log.warning("the executor's heartbeat failed", error=str(error))
    finally:
        with anyio.move_on_after(_GOODBYE_S, shield=True):
            try:
                async with database.transaction() as session:
                    await leases.deregister_instance(session, instance_id)
            except StoreError as error:
                # It expires by itself.
                _log.warning("the executor could not sign off", error=str(error))


async def _unless_it_returns(
    name: str, part: Runs, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Run a part; one that returns without having been cancelled fails the service."""
    try:
        await part(task_status=task_status)
    except Exception as error:
        _log.error("a part failed; the service stops", part=name, error=str(error))
        raise
    raise RuntimeError(f"the {name} ended though nobody asked it to")


def _without_status(run: Callable[[], Awaitable[None]]) -> Runs:
    async def running(*, task_status: TaskStatus[None]) -> None:
        task_status.started()
        await run()

    return running


def _refuse_separate_services_on_sqlite(settings: Settings, parts: frozenset[Part]) -> None:
    url = parse_database_url(settings.database.url, home=settings.core.home)
    if url.get_backend_name() == "sqlite" and parts != ALL_PARTS:
        raise ConfigurationError(
            f"`triggerer {min(parts)}` cannot run on SQLite, which one process alone may write to",
            hint="run `triggerer standalone`, or set [database] url to a PostgreSQL database",
        )


def _new_instance_id() -> str:
    return f"{socket.gethostname()[:40]}:{os.getpid()}:{uuid4().hex[:8]}"


def _has_uvloop() -> bool:
    return find_spec("uvloop") is not None


def _exit_on_the_spot(signum: int) -> NoReturn:
    if sys.stderr.isatty():
        sys.stderr.write("\x1b[?25h\n")  # a live display has hidden the cursor
    logging.shutdown()
    os._exit(128 + signum)
