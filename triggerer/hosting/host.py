"""Hosts the streams that this instance owns: claims streams, runs their triggers, and releases the streams."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import anyio
import structlog
from anyio.abc import TaskStatus

from triggerer.backoff import Backoff, log_failure, retry, warn_seldom
from triggerer.domain.events import Fence
from triggerer.errors import OutcomeUnknown, StoreError
from triggerer.hosting.factory import TriggerFactory
from triggerer.hosting.ownership import Heartbeat, Ownership
from triggerer.hosting.pending_writes import Unwritten, Writer
from triggerer.hosting.preparation import Preparation
from triggerer.hosting.queries import HostingQueries, LeaseQueries, MarkQueries
from triggerer.hosting.reconciliation import Reconciliation
from triggerer.hosting.roster import Roster
from triggerer.hosting.watcher_states import StateWriter
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups.signals import Signal
from triggerer.store.streams import leases as stored_leases
from triggerer.store.streams import marks as stored_marks
from triggerer.store.watchers import hosting as stored_queries
from triggerer.streams import Manager, Member, RuntimeContext
from triggerer.streams.supervision.blocked_loop import StallWatch
from triggerer.synchronization import AutoResetEvent

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class HostSettings:
    """How an instance owns streams and gives them up."""

    lease: timedelta = timedelta(seconds=15)
    """After this time without a heartbeat, by the database's clock, other instances take over the streams."""
    heartbeat: timedelta = timedelta(seconds=3.75)
    """The interval between heartbeats."""
    retry: timedelta = timedelta(seconds=1.25)
    """The interval after a failed heartbeat."""
    drain: timedelta = timedelta(seconds=10)
    """How long to wait for outstanding events when a stream goes to another instance or the service stops."""
    stall_threshold: timedelta = timedelta()
    """A call that blocks the event loop for longer than this is logged. Zero: none is logged (for simulated loops)."""
    healthy_after: timedelta = timedelta(seconds=60)
    """After this time at the latest, a restarted trigger counts as working (`Attempts`). Zero: as soon as it runs."""
    capacity: int = 1000
    """How many triggers this instance hosts at most. All instances of a database must have the same capacity."""


class TriggerHost:
    """Owns a fair share of the streams and hosts their triggers, for as long as `run` runs.

    While the database does not answer, the streams continue, and their events wait in memory. Once the lease is over by
    the instance's own clock (`RuntimeContext.lease`), the streams stop until a heartbeat succeeds.
    """

    def __init__(
        self,
        database: Database,
        *,
        instance_id: str,
        factory: TriggerFactory,
        runtime: RuntimeContext,
        settings: HostSettings | None = None,
        takes_over_at_once: bool = False,
        writers: Sequence[Writer] = (),
        leases: LeaseQueries = stored_leases,
        queries: HostingQueries = stored_queries,
        marks: MarkQueries = stored_marks,
        make_manager: Callable[[RuntimeContext, Callable[[Member], None]], Manager] = Manager,
    ) -> None:
        """Make a host that owns nothing yet.

        Args:
            runtime: The context of the triggers.
            writers: The writers of positions and parked messages. Before a stopped stream starts again, the host waits
                until the writers have no change of this stream left.
            takes_over_at_once: Take over leases before they expire, because no other instance can be alive (SQLite).
        """
        self._database = database
        self._instance_id = instance_id
        self._factory = factory
        self._random = runtime.random
        self._settings: Final = settings or HostSettings()
        self._takes_over_at_once = takes_over_at_once
        self._lease = runtime.lease
        self._unwritten = Unwritten(writers)
        self._ownership = Ownership(
            database,
            instance_id,
            lease=self._settings.lease,
            own_lease=self._lease,
            capacity=self._settings.capacity,
            leases=leases,
            queries=queries,
            marks=marks,
        )
        self._marks = runtime.marks
        self._owned: dict[str, Fence] = {}
        self._roster = Roster()
        self._preparation = Preparation(factory)
        self._states = StateWriter(
            database,
            self._roster,
            queries=queries,
            backoff=self._backoff(),
            healthy_after=self._settings.healthy_after,
        )
        self._wake = AutoResetEvent()
        self._is_stopped = anyio.Event()
        self._failed_heartbeats = 0
        self._manager = make_manager(runtime, self._states.mark_changed)
        self._reconciliation = Reconciliation(
            database,
            queries,
            manager=self._manager,
            roster=self._roster,
            states=self._states,
            preparation=self._preparation,
            unwritten=self._unwritten,
            capacity=self._settings.capacity,
        )

    @property
    def manager(self) -> Manager:
        """The runtime that runs this host's streams. Read only."""
        return self._manager

    def mark_fenced(self, fence: Fence) -> None:
        """Stop a stream at once, because the store refused a write: the stream has a new owner.

        The outstanding messages of the stream are neither acknowledged nor failed.
        """
        if self._owned.get(fence.stream_digest) == fence:
            _log.warning("stream lost to another instance", stream=fence.stream_digest)
            self._forget(fence.stream_digest)
            self._wake.set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Own streams until cancelled. The task counts as started once the host has tried to claim streams.

        Cancellation: Streams are drained for the configured time, then all leases are released.
        """
        subscription = self._database.wakeups.subscribe(Signal.STREAMS_CHANGED)
        with subscription:
            async with anyio.create_task_group() as tasks:
                is_ready = anyio.Event()
                tasks.start_soon(self._run_streams, is_ready)
                try:
                    await is_ready.wait()
                    await self._start()
                    with self._watch_for_stalls():
                        await self._tick_or_try_again()
                        task_status.started()
                        while True:
                            await self._wait(subscription.wait)
                            await self._tick_or_try_again()
                finally:
                    try:
                        with anyio.CancelScope(shield=True):
                            await self._stop()
                    finally:
                        self._is_stopped.set()

    async def _run_streams(self, is_ready: anyio.Event) -> None:
        """Run the streams until `_stop` has drained and stopped them. Set `is_ready` once streams can be added.

        A cancellation of the host must not cancel the streams before `_stop` has drained them. So they run in a
        shielded scope. The scope ends in time, because `_stop` has deadlines.
        """
        with anyio.CancelScope(shield=True):
            async with self._factory, self._manager, anyio.create_task_group() as tasks:
                tasks.start_soon(self._states.run)
                tasks.start_soon(self._watch_lease)
                is_ready.set()
                await self._is_stopped.wait()
                tasks.cancel_scope.cancel()

    def _watch_for_stalls(self) -> AbstractContextManager[object]:
        threshold = self._settings.stall_threshold.total_seconds()
        return StallWatch(threshold) if threshold else nullcontext()

    async def _wait(self, wait: Callable[[timedelta], Any]) -> None:
        """Wait until this host must act again, at most until a heartbeat is due.

        The host also acts after one of these changes:

        - Triggers or streams have changed, or another instance has claimed a stream of this host.
        - A trigger's class was loaded.
        - The store has answered all changes of the stopped streams, so that these streams may start
          again.
        """
        async with anyio.create_task_group() as tasks:

            async def until(happens: Callable[[], Awaitable[None]]) -> None:
                await happens()
                tasks.cancel_scope.cancel()

            tasks.start_soon(until, self._wake.wait)
            if self._unwritten:
                tasks.start_soon(until, self._unwritten.wait)
            if self._preparation.is_loading:
                tasks.start_soon(until, self._preparation.wait_until_loaded)
            await wait(
                self._settings.retry if self._failed_heartbeats else self._settings.heartbeat
            )
            tasks.cancel_scope.cancel()
        self._wake.clear()

    async def _start(self) -> None:
        await retry(
            self._register,
            on=StoreError,
            backoff=self._backoff(),
            on_failure=log_failure(_log, "cannot register this instance yet"),
        )

    async def _register(self) -> None:
        await self._ownership.register(is_alone=self._takes_over_at_once)

    def _backoff(self) -> Backoff:
        return Backoff(first=0.2, longest=5.0, random=self._random)

    # Ownership

    async def _tick_or_try_again(self) -> None:
        try:
            await self._tick()
        except StoreError as error:
            # The streams continue until their lease is over; the next heartbeat tries again.
            self._failed_heartbeats += 1
            warn_seldom(_log, self._failed_heartbeats, "heartbeat failed", error=str(error))
            if isinstance(error, OutcomeUnknown):
                # The commit may have claimed streams. So the next tick begins at once, and reads which streams we own.
                self._wake.set()
        else:
            self._failed_heartbeats = 0

    async def _tick(self) -> None:
        """Send a heartbeat, give up streams beyond our share or capacity, and host the other streams' triggers."""
        heartbeat = await self._ownership.beat(self._roster.ungrown_first, self._marks.in_order())
        self._apply(heartbeat)
        if heartbeat.release:
            await self._give_back(heartbeat.release)
            # Giving up streams may have taken longer than the interval, so the next heartbeat is due now.
            self._wake.set()
        if not await self._reconciliation.run(self._owned):
            # The next tick divides the streams again, or prepares the new triggers.
            self._wake.set()

    def _apply(self, heartbeat: Heartbeat) -> None:
        # If the lease ended during the heartbeat, `_watch_lease` may not have run yet. Stop the streams before the
        # extension, because a stream that has noticed the end of the lease ignores an extension.
        self._stop_if_over()
        self._lease.extend(heartbeat.asked_at)
        self._marks.adopt(heartbeat.marks)
        self._adopt(heartbeat.fences)

    async def _keep_leases(self) -> None:
        """Extend the leases until cancelled, while the host drains its streams. No stream is claimed."""
        failures = 0
        while True:
            await anyio.sleep(
                (self._settings.retry if failures else self._settings.heartbeat).total_seconds()
            )
            try:
                heartbeat = await self._ownership.extend(
                    self._owned.values(), self._marks.in_order()
                )
            except StoreError as error:
                failures += 1
                warn_seldom(_log, failures, "heartbeat failed", error=str(error))
            else:
                failures = 0
                self._apply(heartbeat)

    async def _watch_lease(self) -> None:
        """Stop all streams whenever the lease ends by our own clock, because no heartbeat has extended it in time."""
        while True:
            await self._lease.wait_until_extended()
            await self._lease.wait_until_over()
            self._stop_if_over()

    def _stop_if_over(self) -> None:
        if self._lease.is_over and self._owned:
            _log.warning(
                "the lease on all streams is over: they stop until a heartbeat succeeds",
                streams=len(self._owned),
            )
            for digest in list(self._owned):
                self._forget(digest)

    def _adopt(self, fences: Iterable[Fence]) -> None:
        """Own exactly these leases from now on, and stop the streams of all other leases."""
        owned = {fence.stream_digest: fence for fence in fences}
        for digest, fence in list(self._owned.items()):
            if owned.get(digest) != fence:
                _log.warning("lease of a stream lost", stream=digest)
                self._forget(digest)
        self._owned = owned

    async def _give_back(self, digests: Sequence[str]) -> None:
        """Give these streams to other instances: drain, stop, release."""
        _log.info("giving streams to other instances", count=len(digests))
        # While these streams drain, the instance sends no heartbeat, so the leases of its other streams are not
        # extended. So the streams drain for at most half of the lease's duration.
        patience = min(self._settings.drain, self._settings.lease / 2)
        members = [p.member for d in digests for p in self._roster.on_stream(d)]
        until = anyio.current_time() + patience.total_seconds()
        await self._manager.drain(patience.total_seconds(), members)
        fences = [self._owned[digest] for digest in digests if digest in self._owned]
        await self._forget_and_await_writes(digests, until)
        await self._ownership.release(fences, digests)

    async def _forget_and_await_writes(self, digests: Collection[str], deadline: float) -> None:
        """Stop these streams. Then wait for the store's answers to their changes, but not beyond the deadline."""
        for digest in digests:
            self._forget(digest)
        if self._unwritten.has(digests):
            with anyio.CancelScope(deadline=deadline):
                await self._unwritten.wait_for(digests)

    def _forget(self, digest: str) -> None:
        """Stop the stream at once. Its outstanding messages are neither acknowledged nor failed."""
        self._owned.pop(digest, None)
        for hosted in self._roster.on_stream(digest):
            self._roster.drop(hosted)
            self._manager.abandon(hosted.member)
        self._manager.close_stream_known_as(digest)

    # Stopping

    async def _stop(self) -> None:
        """Let outstanding events resolve, stop everything, and release the leases."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._keep_leases)
            await self._manager.drain(self._settings.drain.total_seconds())
            tasks.cancel_scope.cancel()
        owned = dict(self._owned)
        patience = self._settings.drain.total_seconds()
        await self._forget_and_await_writes(owned, anyio.current_time() + patience / 2)
        try:
            with anyio.fail_after(patience):
                await self._ownership.leave(owned)
        except (StoreError, TimeoutError) as error:
            # Other instances can claim the streams only when the leases have expired.
            _log.warning("leases not given back", error=str(error))
