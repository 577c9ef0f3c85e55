"""Claims queued runs, and lets worker processes execute them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

import anyio
import structlog
from anyio.abc import TaskGroup, TaskStatus

from triggerer.backoff import Backoff, warn_seldom
from triggerer.domain.attempts import RunEnd, RunOrder, Wait
from triggerer.domain.runs import RunState
from triggerer.errors import OutcomeUnknown, TransientStoreError
from triggerer.executor.callbacks import CallbackRunner
from triggerer.executor.claimed_queue import ClaimedQueue, PrefetchLimit
from triggerer.executor.claims import Claims
from triggerer.executor.lease.lease_guard_process import LeaseGuard
from triggerer.executor.left_launches import LeftLaunches
from triggerer.executor.log_files import LogFiles
from triggerer.executor.log_shipping import LogShipper
from triggerer.executor.result_writer import ResultWriter
from triggerer.executor.run_tokens import RunTokens
from triggerer.executor.settings import ExecutorSettings
from triggerer.executor.slots.run_execution import RunServices
from triggerer.executor.slots.slot import Slot, SlotSettings
from triggerer.executor.slots.slot_choice import Spark, WarmUp, choose_slot, is_session_near
from triggerer.executor.spooling.spools import Spools
from triggerer.executor.sweep import SweepSchedule
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups.signals import Signal, Subscription, Wakeups
from triggerer.store.runs.results import AttemptUpdate
from triggerer.synchronization import AutoResetEvent
from triggerer.worker.spark.settings import connect_server

_log = structlog.get_logger(__name__)

_WRITE_SECONDS: Final = 5.0
"""How long a shutdown waits for the store. A run whose result is not stored by then is executed again."""


class Executor:
    """Executes queued runs in worker processes, one run at a time in each process.

    When the executor loses its lease, it ends its runs, because other executors may begin them. The store then refuses
    the results of its attempts.

    Args:
        instance_id: The id of this executor's row in the table `instance`. The caller renews the row's lease.
        log_shipper: Copies the logs of runs to a bucket. The caller runs the shipper, and stops the executor first.
    """

    def __init__(
        self,
        database: Database,
        wakeups: Wakeups,
        *,
        instance_id: str,
        settings: ExecutorSettings,
        log_shipper: LogShipper | None = None,
    ) -> None:
        self._instance_id = instance_id
        self._log_shipper = log_shipper
        self._wakeups = wakeups
        self._settings = settings
        self._sweeps = SweepSchedule(settings.sweep_every)
        self._claims = Claims(
            database,
            instance_id,
            settings.home,
            settings.pools,
            holds_broken=settings.holds_broken,
            connect=connect_server(settings.spark),
        )
        self._result_writer = ResultWriter(database, instance_id, counts_dags=settings.counts_dags)
        self._claimed_queue = ClaimedQueue()
        self._prefetch = PrefetchLimit(settings.workers)
        self._spools = Spools(database, settings.home)
        self._slots = self._make_slots(database)
        self._callbacks = CallbackRunner(
            database,
            wakeups,
            self._result_writer,
            executor=instance_id,
            settings=settings,
            get_lease=lambda: self._leases_lost if self._has_lease else None,
            get_guard=lambda: self.guard,
            on_called=self._ship_log,
        )
        self._left_launches = LeftLaunches(
            database,
            self._result_writer,
            executor=instance_id,
            spark=settings.spark,
            sweep_every_s=settings.sweep_every.total_seconds(),
        )
        self._ending: set[int] = set()
        """The primary keys of runs that were cancelled before they began, until the end of the run's log is written."""
        self._ending_one = anyio.Lock()
        self._shown_waiting: set[int] = set()
        """Runs in the claimed queue that the store shows as waiting."""
        self._log_files = LogFiles()
        self._changed = AutoResetEvent()
        # `_more` is True if there may be runs to claim. `_cancels` is True if there may be runs to cancel. `_dags` is
        # True if DAGs may have changed.
        self._more = self._cancels = self._dags = True
        self._wants_warm = False
        self._uses_pools = self._has_broken_files = False
        # With SQLite there is no other executor, and the lease never ends.
        self._has_lease = True
        self.guard: LeaseGuard | None = None
        """Ends the workers if this process cannot do so before the lease ends. None before the first guarded lease."""
        self._leases_lost = 0
        self._stopping = anyio.Event()

    def _make_slots(self, database: Database) -> list[Slot]:
        services = RunServices(
            database,
            self._result_writer,
            self._settings.timeout_grace,
            self._spools,
            RunTokens(database),
        )
        settings = SlotSettings(self._settings.for_worker(), self._settings.cancel_grace)
        return [
            Slot(services, settings, lambda: self.guard, self._on_free, self._on_wait)
            for _ in range(self._settings.workers)
        ]

    @property
    def worker_pids(self) -> list[int]:
        """The living worker processes."""
        return [slot.worker.pid for slot in self._slots if slot.worker is not None]

    @property
    def executing(self) -> list[int]:
        """The primary keys of the runs that workers execute now."""
        return [slot.run.run_pk for slot in self._slots if slot.run is not None]

    def mark_lease_lost(self) -> None:
        """End all runs, because other executors may soon execute them. No run begins until `mark_lease_acquired`.

        In the store, this executor still has the runs. The next sweep queues each run again that no other executor has
        taken. These attempts do not count towards `MAX_ATTEMPTS`, because the executor did not die.
        """
        self._has_lease = False
        self._leases_lost += 1
        self._claimed_queue.take_all()
        for slot in self._slots:
            if slot.run is not None:
                slot.cut_short()

    def mark_lease_acquired(self, guard: LeaseGuard) -> None:
        """Continue under a new lease and its guard. First, sweep: other executors may have taken runs meanwhile."""
        self.guard = guard
        self._has_lease = True
        self._sweeps.ask()
        self._more = self._cancels = self._dags = True
        self._changed.set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Execute runs until cancelled.

        Cancellation: No further run is claimed. Runs that do not end within `shutdown_grace` are killed and queued
        again. No worker is left.
        """
        await self._log_files.record_host(self._settings.home, self._instance_id)
        async with anyio.create_task_group() as tasks:
            # Do not call `tasks.start` here. A cancelled `start` would wait for the end of `_work`. But `_work` ends
            # only after this task has set `_stopping`, so this task would hang.
            tasks.start_soon(self._work)
            try:
                with self._wakeups.subscribe(
                    Signal.RUNS_QUEUED,
                    Signal.RUNS_ENDED,
                    Signal.RUNS_CANCELLED,
                    Signal.DAGS_CHANGED,
                ) as subscription:
                    async with anyio.create_task_group() as supervision:
                        supervision.start_soon(self._listen, subscription)
                        supervision.start_soon(self._callbacks.run)
                        supervision.start_soon(self._left_launches.run)
                        task_status.started()
                        await self._supervise(supervision)
            finally:
                self._stopping.set()

    async def _work(self) -> None:
        # Shielded, because runs still have their grace after a cancellation. `_wind_down` limits the time.
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as work:
                work.start_soon(self._result_writer.run)
                work.start_soon(self._spools.run)
                for slot in self._slots:
                    work.start_soon(slot.serve)
                await self._stopping.wait()
                await self._wind_down()
                work.cancel_scope.cancel()

    async def _listen(self, subscription: Subscription) -> None:
        while True:
            signals = await subscription.wait()
            self._more |= Signal.RUNS_QUEUED in signals
            # The end of a run may have freed a slot of its pool.
            self._more |= self._uses_pools and Signal.RUNS_ENDED in signals
            self._cancels |= Signal.RUNS_CANCELLED in signals
            self._dags |= Signal.DAGS_CHANGED in signals
            if self._more or self._cancels or self._dags:
                self._changed.set()

    async def _supervise(self, tasks: TaskGroup) -> None:
        backoff = Backoff(first=0.2, longest=10.0)
        while True:
            self._changed.clear()
            if not self._has_lease:
                await self._changed.wait()
                continue
            try:
                await self._do_what_is_due(tasks)
            except TransientStoreError as error:
                if isinstance(error, OutcomeUnknown):
                    # The outcome is unknown: the claim may have succeeded. A sweep finds the claimed runs.
                    self._sweeps.ask()
                self._more = self._cancels = self._dags = True
                delay = backoff.next_delay()
                warn_seldom(
                    _log,
                    backoff.failures,
                    "nothing can be claimed",
                    error=str(error),
                    retry_after_s=round(delay, 3),
                )
                await anyio.sleep(delay)
                continue
            backoff.reset()
            await self._changed.wait_for(min(self._sweeps.wait_s, self._claimed_queue.stale_in_s))
            if not self._claimed_queue.stale_in_s:
                await self._requeue_waiting()

    async def _do_what_is_due(self, tasks: TaskGroup) -> None:
        """Sweep, cancel runs and claim runs, whichever is due.

        If DAGs have changed, first read what a claim depends on: whether runs use pools, and whether files are broken.
        """
        if not self._sweeps.wait_s:
            self._cancels = False
            with self._sweeps.sweeping():
                self._cancel(await self._sweep(), tasks)
            self._more = True
        if self._cancels:
            self._cancels = False
            self._cancel(await self._claims.to_cancel(), tasks)
        if self._dags:
            self._dags = False
            self._wants_warm = self._settings.prewarm and await self._claims.needs_spark()
            self._warm_up()
            self._uses_pools = await self._claims.uses_pools()
            self._has_broken_files = await self._claims.has_broken_files()
        if self._more and self._has_lease and (room := self._room()):
            await self._claim(room)

    async def _claim(self, room: int) -> None:
        """Claim up to `room` runs, and give them to free slots."""
        self._more = False
        leases_lost = self._leases_lost
        if self._uses_pools or self._has_broken_files:
            orders = await self._claims.claim(
                room, uses_pools=self._uses_pools, has_broken_files=self._has_broken_files
            )
        else:
            step = self._claims.claim_step(room)
            orders = self._claims.claimed(await self._result_writer.perform_with_next_commit(step))
        if leases_lost != self._leases_lost:
            # The lease ended during the claim. The next sweep queues these runs again, unless other executors have
            # claimed them.
            return
        self._more |= len(orders) == room
        for order in orders:
            self._claimed_queue.add(order)
            if self._log_shipper is not None:
                self._log_shipper.expect(order.log_path)
        self._assign_runs()
        if self._more:
            self._changed.set()

    def _room(self) -> int:
        return self._claimed_queue.room(
            free=sum(slot.is_free for slot in self._slots),
            ahead=self._prefetch.runs,
            warming=is_session_near(self._slots),
        )

    def _assign_runs(self) -> None:
        for order in self._claimed_queue.waiting():
            slot = choose_slot(self._slots, needs_spark=order.needs_spark)
            if slot is not None:
                self._claimed_queue.take(order.run_pk)
                if order.run_pk in self._shown_waiting:
                    self._shown_waiting.remove(order.run_pk)
                    wait = Wait(None, datetime.now(UTC))
                    self._result_writer.submit_nowait(AttemptUpdate(order, wait=wait))
                slot.give(order)
            elif not order.needs_spark:
                return

    def _on_free(self, slot: Slot, order: RunOrder | None, seconds: float) -> None:
        if order is not None:
            self._spools.drop_nowait(order.run_pk)
            self._ship_log(order)
        if self._stopping.is_set():
            return
        if order is not None:
            self._prefetch.record(seconds)
            # A run that needed Spark may have left no session in its slot. Then open a session before the next run
            # needs Spark.
            self._wants_warm |= (
                self._settings.prewarm and order.needs_spark and slot.spark is Spark.COLD
            )
        # Read this before `_assign_runs`, which may give the slot another run.
        was_cut_short = slot.was_cut_short
        if slot.has_left_launches:
            self._left_launches.ask()
        self._assign_runs()
        self._warm_up()
        # If a run of another slot waits for cores, give this slot's cores back between two runs. Otherwise a slot that
        # always has a next run would keep its cores.
        if any(other.is_waiting for other in self._slots):
            slot.release_executors()
        if was_cut_short:
            # The sweep queues the run again, unless another executor has it.
            self._sweeps.ask()
        if self._more or was_cut_short:
            self._changed.set()

    def _on_wait(self, slot: Slot) -> None:
        for other in self._slots:
            if other is not slot and other.is_free:
                other.release_executors()

    def _warm_up(self) -> None:
        if not self._wants_warm or any(slot.spark is not Spark.COLD for slot in self._slots):
            return
        slot = choose_slot(self._slots, needs_spark=True)
        if slot is not None:
            # Do not repeat a failed warm-up: if Spark cannot be started now, a second start would fail, too.
            self._wants_warm = False
            slot.give(WarmUp())

    async def _sweep(self) -> list[int]:
        """Act on changes that no wake-up announced. Return this executor's runs that must be cancelled."""
        executing = [(slot, slot.run) for slot in self._slots if slot.run is not None]
        known = {run.run_pk for _, run in executing} | self._ending
        known |= {order.run_pk for order in self._claimed_queue.waiting()}
        ours = await self._claims.sweep(known | self._result_writer.unwritten)
        if ours.keys() - known:
            # No slot executes these runs any longer, but their last updates are not stored yet. Sweep again soon. If a
            # run then has neither a stored end nor an unwritten update, the sweep queues the run again.
            self._sweeps.ask_soon()
        for slot, run in executing:
            claim = ours.get(run.run_pk)
            if claim is not None and claim.epoch == run.epoch:
                continue
            if slot.run is run and run.run_pk not in self._result_writer.unwritten:
                _log.warning("a run was given to another attempt; ending it here", run=run.run_id)
                await slot.abandon()
        return [run_pk for run_pk, claim in ours.items() if claim.cancel_requested]

    def _cancel(self, run_pks: Iterable[int], tasks: TaskGroup) -> None:
        for run_pk in run_pks:
            verdict = RunEnd(RunState.CANCELLED, datetime.now(UTC), "cancelled")
            order = self._claimed_queue.take(run_pk)
            if order is not None:
                self._ending.add(run_pk)
                tasks.start_soon(self._end_unstarted, order, verdict)
            for slot in self._slots:
                if slot.run is not None and slot.run.run_pk == run_pk and not slot.is_stopping:
                    tasks.start_soon(slot.stop, slot.run, verdict)

    async def _end_unstarted(self, order: RunOrder, verdict: RunEnd) -> None:
        # Write the log first: once the store has the run's end, a user may read the log.
        async with self._ending_one:
            await self._log_files.end(order.log_path, order.run_id, verdict.state)
        self._ending.discard(order.run_pk)
        self._result_writer.submit_nowait(AttemptUpdate(order, end=verdict))
        self._ship_log(order)

    def _ship_log(self, order: RunOrder) -> None:
        if self._log_shipper is not None:
            self._log_shipper.ship(order.log_path)

    async def _requeue_waiting(self) -> None:
        """Queue all claimed runs again, because the oldest one has waited for `STALE_SECONDS`.

        The newer runs are queued again too. If one stayed, it could begin before the oldest run. Exception: while a
        Spark session is about to open, all claimed runs stay, and wait for the session.
        """
        if is_session_near(self._slots):
            self._record_waiting()
            self._claimed_queue.wait_again()
            return
        await self._requeue(self._claimed_queue.take_all(), have_begun=False)

    def _record_waiting(self) -> None:
        """Store why claimed runs wait for a worker. Users would otherwise see these runs as running."""
        waiting = self._claimed_queue.waiting()
        self._shown_waiting &= {order.run_pk for order in waiting}
        for order in waiting:
            if order.run_pk not in self._shown_waiting:
                self._shown_waiting.add(order.run_pk)
                reason = (
                    "Spark, which is starting" if order.needs_spark else "a worker that is free"
                )
                wait = Wait(reason, datetime.now(UTC))
                self._result_writer.submit_nowait(AttemptUpdate(order, wait=wait))

    async def _requeue(self, orders: list[RunOrder], *, have_begun: bool) -> None:
        try:
            await self._claims.requeue(orders, have_begun=have_begun)
        except TransientStoreError as error:
            # In the store, this executor still has the runs. The next sweep queues the runs again: a sweep of this
            # executor, or of another one if this executor stops first.
            _log.warning("runs could not be put back yet", runs=len(orders), error=str(error))
            self._sweeps.ask()

    async def _wind_down(self) -> None:
        with anyio.move_on_after(_WRITE_SECONDS):
            await self._requeue(self._claimed_queue.take_all(), have_begun=False)
        with anyio.move_on_after(self._settings.shutdown_grace.total_seconds()):
            for slot in self._slots:
                await slot.idle()
        killed = [slot.run for slot in self._slots if slot.run is not None and not slot.is_stopping]
        # A process that survives even SIGKILL must not prevent the service from stopping.
        with anyio.move_on_after(_WRITE_SECONDS):
            async with anyio.create_task_group() as endings:
                for slot in self._slots:
                    endings.start_soon(slot.end_now)
        with anyio.move_on_after(_WRITE_SECONDS) as patience:
            await self._result_writer.written()
            if killed:
                _log.warning("runs were interrupted and go back into the queue", runs=len(killed))
                await self._requeue(killed, have_begun=True)
        if patience.cancelled_caught:
            _log.warning("the store did not take all results; their runs will be repeated")
