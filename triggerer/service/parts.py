"""Builds the parts of the service and passes each one its dependencies."""

from __future__ import annotations

import socket
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
from anyio.abc import TaskGroup, TaskStatus

from triggerer.config import Settings
from triggerer.observability.target_names import target_names
from triggerer.processes.instance_ids import host_and_pid, new_instance_id
from triggerer.service.metrics import MOST_LANES, DatabaseGauges, StreamMetrics, gathered
from triggerer.service.status import Readiness
from triggerer.service.supervising import (
    Runs,
    retry_while_unavailable,
    unless_it_returns,
    without_status,
)
from triggerer.store.database.transactions import Database
from triggerer.worker.spark.settings import SUBMIT, mode_of

if TYPE_CHECKING:
    from triggerer.config.sections import TriggererSettings
    from triggerer.domain.events import Fence
    from triggerer.domain.watchers.parked import ParkedBounds
    from triggerer.executor.lease.registration import Registration
    from triggerer.executor.log_shipping import LogShipper
    from triggerer.hosting.factory import TriggerFactory
    from triggerer.hosting.host import HostSettings
    from triggerer.streams import RuntimeSettings


class Part(StrEnum):
    """A part of the service. With PostgreSQL, each part can run as a process of its own."""

    TRIGGERER = "triggerer"
    SCHEDULER = "scheduler"
    DAG_PROCESSOR = "dag-processor"
    EXECUTOR = "executor"
    API = "api"


ALL_PARTS: Final = frozenset(Part)
_OWN_NOTHING: Final = frozenset({Part.SCHEDULER, Part.DAG_PROCESSOR, Part.API})
"""The parts that own no streams and no runs, so they need no lease. Their heartbeat is only shown to users."""


async def start_parts(
    settings: Settings,
    parts: frozenset[Part],
    database: Database,
    background: TaskGroup,
    workers: TaskGroup,
    readiness: Readiness,
) -> None:
    """Build and start the given parts in this process, except the API, which `start_api` starts."""
    if visible := [part.value for part in sorted(parts & _OWN_NOTHING)]:
        from triggerer.store.streams.presence import Presence

        presence = Presence(database, visible)
        await background.start(unless_it_returns, "presence", presence.run)
    if Part.DAG_PROCESSOR in parts:
        await workers.start(unless_it_returns, "dag-processor", _dag_processor(settings, database))
    if Part.TRIGGERER in parts:
        await _start_triggerer(settings, database, background, workers, readiness)
    if Part.SCHEDULER in parts:
        await workers.start(unless_it_returns, "scheduler", _scheduler(settings, database))
        await workers.start(unless_it_returns, "backfills", _backfills(settings, database))
        await workers.start(unless_it_returns, "retention", _retention(settings, database))
        gauges = DatabaseGauges(database, _parked_bounds(settings.triggerer))
        await background.start(unless_it_returns, "gauges", gauges.run)
        if settings.notify.urls and settings.notify.on:
            await workers.start(unless_it_returns, "notifier", _notifier(settings, database))
    if Part.EXECUTOR in parts:
        await _start_executor(settings, database, background, workers, readiness)
        if Part.SCHEDULER not in parts and settings.retention.logs is not None:
            from triggerer.service.retention import LogRetention

            retention = LogRetention(database, settings.retention.logs)
            await workers.start(unless_it_returns, "retention of logs", retention.run)
    from triggerer.store.schema.compatibility import SchemaWatch

    # Start `SchemaWatch` in the group `workers`, so that its failure stops the parts as a signal does. A failure in the
    # group `background` would end tasks that the stopping parts still need.
    await workers.start(unless_it_returns, "schema", SchemaWatch(database).run)


async def start_api(
    settings: Settings,
    parts: frozenset[Part],
    database: Database,
    workers: TaskGroup,
    listener: socket.socket,
) -> None:
    """Start the API on a listening socket: as a child process, or in this process if the API is the only part."""
    from triggerer.service.api_part import ApiChild

    if parts == {Part.API}:
        from triggerer.api.serving import serve

        serving = without_status(partial(serve, settings, database, listener))
        await workers.start(unless_it_returns, "api", serving)
    else:
        child = ApiChild(settings, database, listener)
        await workers.start(unless_it_returns, "api", child.run)


async def _start_triggerer(
    settings: Settings,
    database: Database,
    background: TaskGroup,
    workers: TaskGroup,
    readiness: Readiness,
) -> None:
    from triggerer.hosting import TriggerHost
    from triggerer.hosting.ownership import OWN_LEASE_MARGIN
    from triggerer.hosting.reporting import Reporter
    from triggerer.processes.own_lease import OwnLease
    from triggerer.store.events.recorder import EventRecorder
    from triggerer.store.streams.state_writer import StateWriter
    from triggerer.store.watchers.bookmark_writer import BookmarkWriter
    from triggerer.store.watchers.parked_writer import ParkedWriter
    from triggerer.store.watchers.position_writer import PositionWriter
    from triggerer.streams import RuntimeContext
    from triggerer.streams.supervision.live_state import read_streams

    chosen = settings.triggerer
    # A SQLite database has one service at a time, so no other instance can own or take over streams.
    is_alone = database.dialect == "sqlite"

    # The writers need `host.mark_fenced`, and `host` needs the writers. So the writers get this function. When a writer
    # calls it, `host` exists.
    def mark_fenced(fence: Fence) -> None:
        host.mark_fenced(fence)

    recorder = EventRecorder(database, on_fenced=mark_fenced)
    positions = PositionWriter(database, on_fenced=mark_fenced)
    parked = ParkedWriter(database, on_fenced=mark_fenced, bounds=_parked_bounds(chosen))
    states = StateWriter(database, on_fenced=mark_fenced)
    bookmarks = BookmarkWriter(database, on_fenced=mark_fenced)
    lease = (
        OwnLease.unlimited()
        if is_alone
        else OwnLease(chosen.lease_duration, margin=OWN_LEASE_MARGIN)
    )
    instance_id = new_instance_id()
    host = TriggerHost(
        database,
        instance_id=instance_id,
        factory=_trigger_factory(settings),
        runtime=RuntimeContext(
            recorder,
            positions,
            parked,
            states,
            recorder,
            bookmarks,
            parked_at_bound=chosen.parked_at_bound,
            falls_behind=chosen.on_failure == "catch_up",
            settings=_runtime_settings(chosen),
            lease=lease,
        ),
        writers=(positions, parked, states, bookmarks),
        settings=_host_settings(settings),
        takes_over_at_once=is_alone,
    )
    background.start_soon(unless_it_returns, "recorder", without_status(recorder.run))
    background.start_soon(unless_it_returns, "positions", without_status(positions.run))
    background.start_soon(unless_it_returns, "parked", without_status(parked.run))
    background.start_soon(unless_it_returns, "states", without_status(states.run))
    background.start_soon(unless_it_returns, "bookmarks", without_status(bookmarks.run))
    await workers.start(unless_it_returns, "triggerer", host.run)
    reporter = Reporter(database, instance_id, lambda: read_streams(host.manager))
    await workers.start(unless_it_returns, "reporter", reporter.run)
    metrics = StreamMetrics(lambda: read_streams(host.manager, most_lanes=MOST_LANES))
    await workers.start(unless_it_returns, "stream metrics", partial(gathered, metrics.read))
    readiness.add("the lease on streams", lambda: not lease.is_over)


def _trigger_factory(settings: Settings) -> TriggerFactory:
    from triggerer.hosting.factory import TriggerFactory
    from triggerer.isolation import IsolationSettings
    from triggerer.plugins import load_trigger_class
    from triggerer.plugins.trial_import import try_import

    core, chosen = settings.core, settings.triggerer
    return TriggerFactory(
        partial(
            load_trigger_class,
            dags_folder=core.dags_folder,
            allowed_modules=core.allowed_trigger_modules,
            try_first=partial(try_import, patience=settings.dag_processor.parse_timeout),
        ),
        IsolationSettings(
            placements=chosen.isolation,
            dags_folder=core.dags_folder,
            allowed_modules=core.allowed_trigger_modules,
            log=core,
        ),
        # The DAG processor has imported the trigger's class within this time, so the host needs no longer.
        load_timeout=settings.dag_processor.parse_timeout,
        ack_timeout=chosen.shared_stream_ack_timeout,
    )


def _parked_bounds(chosen: TriggererSettings) -> ParkedBounds:
    from triggerer.domain.watchers.parked import ParkedBounds

    return ParkedBounds(
        max_messages=chosen.parked_max_messages,
        max_bytes=chosen.parked_max_bytes,
        total_bytes=chosen.parked_total_bytes,
    )


def _runtime_settings(chosen: TriggererSettings) -> RuntimeSettings:
    from triggerer.streams import RuntimeSettings

    return RuntimeSettings(
        ack_timeout=chosen.shared_stream_ack_timeout.total_seconds(),
        subscriber_queue_size=chosen.shared_stream_subscriber_queue_size,
        overflow_grace=chosen.shared_stream_overflow_grace.total_seconds(),
        max_outstanding=chosen.max_outstanding_events,
        max_outstanding_per_lane=chosen.max_outstanding_events_per_lane,
        max_deliveries=chosen.max_deliveries,
        max_outstanding_bytes=chosen.max_outstanding_bytes,
        max_outstanding_bytes_per_lane=chosen.max_outstanding_bytes_per_lane,
    )


def _host_settings(settings: Settings) -> HostSettings:
    from triggerer.hosting.host import HostSettings
    from triggerer.hosting.ownership import HEARTBEAT_INTERVAL, RETRY_INTERVAL

    chosen = settings.triggerer
    return HostSettings(
        lease=chosen.lease_duration,
        heartbeat=chosen.lease_duration * HEARTBEAT_INTERVAL,
        retry=chosen.lease_duration * RETRY_INTERVAL,
        drain=settings.core.shutdown_grace,
        capacity=chosen.capacity,
        stall_threshold=chosen.stall_threshold,
    )


def _dag_processor(settings: Settings, database: Database) -> Runs:
    from triggerer.dag_processing.processor import DagProcessor

    return DagProcessor(
        database,
        dags_folder=settings.core.dags_folder,
        min_file_process_interval=settings.dag_processor.min_file_process_interval,
        allowed_modules=settings.core.allowed_trigger_modules,
        pools=settings.pools,
        file_timeout=settings.dag_processor.parse_timeout,
        removal_grace=settings.dag_processor.removal_grace,
    ).run


def _scheduler(settings: Settings, database: Database) -> Runs:
    from triggerer.scheduler.loop import Scheduler

    return Scheduler(
        database,
        max_dagruns_to_create_per_loop=settings.scheduler.max_dagruns_to_create_per_loop,
        sweep_interval=settings.scheduler.heartbeat_sec,
    ).run


def _backfills(settings: Settings, database: Database) -> Runs:
    from triggerer.scheduler.backfills import BackfillRunner

    return BackfillRunner(database, sweep_every=settings.scheduler.heartbeat_sec).run


def _notifier(settings: Settings, database: Database) -> Runs:
    from triggerer.domain.notifications import Event
    from triggerer.operations.notifying import writer_for
    from triggerer.scheduler.notifying.notifier import Notifier

    return Notifier(
        database,
        frozenset(map(Event, settings.notify.on)),
        targets=target_names(settings.notify.urls),
        get_url=settings.resolve_target,
        get_writer=partial(writer_for, settings),
        look_every=settings.scheduler.heartbeat_sec,
    ).run


def _retention(settings: Settings, database: Database) -> Runs:
    from triggerer.service.retention import Retention

    ack_timeout = settings.triggerer.shared_stream_ack_timeout
    return Retention(database, settings.retention, ack_timeout=ack_timeout).run


async def _start_executor(
    settings: Settings,
    database: Database,
    background: TaskGroup,
    workers: TaskGroup,
    readiness: Readiness,
) -> None:
    from triggerer.executor import Executor, ExecutorSettings
    from triggerer.executor.lease.registration import Registration

    instance_id = new_instance_id()
    shipper = _log_shipper(settings, instance_id)
    if shipper is not None:
        # The shipper outlives the executor: the logs of the last runs are complete only when the executor has stopped.
        await background.start(unless_it_returns, "log shipping", shipper.run)
    executor = Executor(
        database,
        database.wakeups,
        instance_id=instance_id,
        log_shipper=shipper,
        settings=ExecutorSettings(
            home=settings.core.home,
            dags_folder=settings.core.dags_folder,
            workers=settings.executor.workers,
            pools=settings.pools,
            spark=settings.spark.to_json(),
            file_patience=settings.dag_processor.removal_grace,
            holds_broken=settings.executor.broken_file == "hold",
            prewarm=settings.executor.prewarm and mode_of(settings.spark) != SUBMIT,
            shutdown_grace=settings.core.shutdown_grace,
            log_max_bytes=settings.logs.max_bytes,
            counts_dags=settings.metrics.dag_labels,
        ),
    )
    registration = Registration(
        database,
        instance_id,
        expiry=settings.executor.lease_duration,
        holder=None if database.dialect == "sqlite" else executor,
    )
    readiness.add("the lease on runs", lambda: registration.is_lease_valid)
    # The registration outlives the executor. Otherwise another executor would take over runs that are still ending.
    await background.start(
        unless_it_returns,
        "registration",
        partial(_stay_registered, registration, settings.database.start_timeout),
    )
    await workers.start(unless_it_returns, "executor", executor.run)
    if settings.executor.log_address:
        from triggerer.executor.log_server import LogServer

        server = LogServer(database, instance_id, settings.core.home, settings.executor.log_address)
        await workers.start(unless_it_returns, "logs", server.run)


def _log_shipper(settings: Settings, instance_id: str) -> LogShipper | None:
    if not settings.logs.ship:
        return None
    from triggerer.executor.log_shipping import LogShipper
    from triggerer.shipped_logs.bucket import require_sdk
    from triggerer.shipped_logs.destinations import LogDestination

    require_sdk()
    host, _ = host_and_pid(instance_id)
    return LogShipper(settings.core.home, LogDestination.of(settings.logs.ship), host)


async def _stay_registered(
    registration: Registration,
    patience: timedelta,
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    await retry_while_unavailable(registration.renew, patience)
    await registration.keep(task_status=task_status)
