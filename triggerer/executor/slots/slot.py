"""Executes the jobs of one slot, one job at a time, in a worker that starts when it is needed.

A slot's *job* is a run, or a warm-up: the opening of a Spark session before a run needs it.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import anyio
import structlog

from triggerer.backoff import Backoff, warn_seldom
from triggerer.domain.attempts import RunEnd, RunOrder
from triggerer.domain.runs import RunState
from triggerer.executor.lease.lease_guard_process import LeaseGuard
from triggerer.executor.log_files import LogFiles
from triggerer.executor.slots.run_ending import RunEnding
from triggerer.executor.slots.run_execution import RunExecution, RunServices
from triggerer.executor.slots.slot_choice import Spark, WarmUp
from triggerer.executor.slots.worker_frames import WarmedFrame, WorkerFrame
from triggerer.executor.slots.worker_process import WorkerProcess, open_worker
from triggerer.processes.ipc import ChannelClosed
from triggerer.synchronization import AutoResetEvent, Notifier
from triggerer.worker.protocol import message

_log = structlog.get_logger(__name__)

_SCARCE: Final = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
"""The errors that mean that memory, processes or descriptors are used up. After such an error, a run waits for a
worker."""


@dataclass(frozen=True, slots=True)
class SlotSettings:
    """The settings that all slots of an executor share."""

    worker: Mapping[str, Any]
    """The settings that each worker needs, see `open_worker`."""
    cancel_grace: timedelta
    """The time that the user's code has to unwind after SIGTERM."""


@dataclass(slots=True)
class Slot:
    """Executes one job after the other. Call `serve` in one task, for the slot's whole life.

    Args:
        get_guard: Returns the guard of the executor's present lease. The kernel kills a worker together with the guard
            under which the worker started.
        on_free: Called on the event loop each time the slot becomes free. The arguments are the slot, the executed run
            (None after a warm-up), and the duration in seconds.
        on_wait: Called when the slot's run has begun to wait, for instance for its Spark cluster.
    """

    services: RunServices
    settings: SlotSettings
    get_guard: Callable[[], LeaseGuard | None]
    on_free: Callable[[Slot, RunOrder | None, float], None]
    on_wait: Callable[[Slot], None]
    spark: Spark = Spark.COLD
    worker: WorkerProcess | None = None
    run: RunOrder | None = None
    is_waiting: bool = False
    """True while the slot's run waits, for instance for its Spark cluster or a missing DAG file."""
    _release_first: bool = False
    _job: RunOrder | WarmUp | None = None
    _arrived: AutoResetEvent = field(default_factory=AutoResetEvent)
    _overdue: AutoResetEvent = field(default_factory=AutoResetEvent)
    _freed: Notifier = field(default_factory=Notifier)
    busy_since: float = 0.0
    """The time when the slot received its job, on the monotonic clock."""
    _ending: RunEnding = field(init=False)
    """The decisions about the end of the present job, or of the last job while the slot is free."""
    _execution: RunExecution | None = None
    """The present run in its worker. None: no worker has the run."""
    _is_open: bool = False
    """True while the present worker has an open Spark driver."""
    _warmed: WarmedFrame | None = None
    _resource_wait: anyio.CancelScope | None = None
    _scarcity: Backoff = field(default_factory=lambda: Backoff(first=0.5, longest=10.0))
    _log_files: LogFiles = field(default_factory=LogFiles)

    def __post_init__(self) -> None:
        self._ending = self._new_ending()

    @property
    def is_free(self) -> bool:
        return self._job is None

    @property
    def is_stopping(self) -> bool:
        """True once the executor has decided how the run ends, for instance because a user cancelled the run."""
        return self._ending.verdict is not None

    @property
    def was_cut_short(self) -> bool:
        """True if this executor does not store the run's end: the run is queued again, or another executor has it."""
        return self._ending.is_cut_short

    @property
    def has_left_launches(self) -> bool:
        """True if the run's process died and may have left a launch behind, see `LeftLaunches`."""
        return self._ending.has_left_launches

    def release_executors(self) -> None:
        """Give the session's cores back to the cluster: now if the slot is free, otherwise before its next run."""
        if self.worker is None or self.spark is not Spark.WARM:
            return
        if self.is_free:
            self.worker.tasks.start_soon(self.worker.send_ahead, message("release"))
        else:
            self._release_first = True

    async def idle(self) -> None:
        """Wait until the slot executes no run."""
        while self.run is not None:
            await self._freed.wait()

    def give(self, job: RunOrder | WarmUp) -> None:
        """Let `serve` execute a run, or warm up. Call this method only while the slot is free."""
        assert self._job is None
        self._job, self.busy_since = job, time.monotonic()
        if isinstance(job, RunOrder):
            self.run = job
        else:
            self.spark = Spark.WARMING
        self._ending = self._new_ending()
        self._arrived.set()

    def _new_ending(self) -> RunEnding:
        return RunEnding(self.services.result_writer, self._log_files, self.run)

    async def stop(self, run: RunOrder, verdict: RunEnd) -> None:
        """End the run: SIGTERM first, SIGKILL after `cancel_grace`. If the run reports no end, its end is `verdict`.

        Does nothing if the slot no longer has this run.
        """
        if self.run is not run:
            return
        self._ending.verdict = verdict
        self._call_off_beginning()
        if self._execution is not None:
            await self._execution.stop(self.settings.cancel_grace)

    async def abandon(self) -> None:
        """Kill the run with its worker, wait for the worker's end, and record no end of the run.

        The run no longer belongs to this attempt: it is queued again, or another attempt has begun.
        """
        self.cut_short()
        self._ending.is_cut_short = True
        if self.worker is not None:
            await self.worker.gone.wait()

    def cut_short(self) -> None:
        """Kill the run, because another executor may claim it. An end that was already decided is still stored."""
        self._ending.give_away()
        self._kill()

    async def end_now(self) -> None:
        """Kill the run so that another executor can take it, and wait for the process to exit.

        An end that was already decided is still stored.
        """
        ending = self._ending
        self._kill()
        try:
            await self.idle()
        finally:
            # From now on, the run may be queued again. Then another executor writes the run's log.
            ending.may_end_log = False

    def _kill(self) -> None:
        self._ending.cut_short()
        self._call_off_beginning()
        if self.worker is not None:
            self.worker.kill()

    async def serve(self) -> None:
        """Execute the jobs that `give` brings, until cancelled. A cancellation kills the worker."""
        while True:
            await self._next_job()
            done = True
            guard = self.get_guard()
            if guard is not None and guard.has_ended:
                self.cut_short()
            if self._ending.is_called_off:
                await self._ending.record_verdict()
                self.spark = Spark.COLD
                self._free()
                continue
            try:
                async with open_worker(self.settings.worker, guard, self._on_frame) as self.worker:
                    done = await self._serve_with(self.worker)
                self._scarcity.reset()
            except OSError as error:
                if self.run is not None and error.errno in _SCARCE:
                    done = False
                    await self._wait_for_resources(self.run, error)
                else:
                    await self._ending.record_end(
                        RunState.FAILED, f"no worker could be started: {error}"
                    )
            finally:
                self.worker, self.spark, self._is_open = None, Spark.COLD, False
            if done:
                self._free()

    async def _wait_for_resources(self, run: RunOrder, error: OSError) -> None:
        """Wait before the next start of a worker. Return early if the run must no longer begin."""
        delay = self._scarcity.next_delay()
        said = "no worker can be started; the run waits"
        named = {"dag": run.dag_id, "run": run.run_id, "error": str(error)}
        warn_seldom(_log, self._scarcity.failures, said, **named)
        with anyio.CancelScope() as self._resource_wait:
            if not self._ending.is_called_off:
                await anyio.sleep(delay)
        self._resource_wait = None

    async def _next_job(self, worker: WorkerProcess | None = None) -> None:
        """Wait for a job, or until the worker is gone."""
        while self._job is None and not (worker is not None and worker.gone.is_set()):
            await self._arrived.wait()

    async def _notice_end(self, worker: WorkerProcess) -> None:
        await worker.gone.wait()
        self._arrived.set()

    async def _serve_with(self, worker: WorkerProcess) -> bool:
        """Use the worker for as long as it is usable.

        Returns:
            True if the present job is done. False: the next worker must do the job.
        """
        worker.tasks.start_soon(self._notice_end, worker)
        worker.tasks.start_soon(self._kill_overdue)
        while True:
            job = self._job
            assert job is not None
            if isinstance(job, WarmUp):
                await self._warm(worker)
            elif not await self._execute(worker, job):
                if worker.gone.is_set():
                    return False
                continue
            if worker.gone.is_set() or self._ending.is_cut_short:
                return True
            self._free()
            await self._next_job(worker)
            if worker.gone.is_set():
                # The worker died while it was idle. The next worker executes the job that has arrived, if any.
                return False

    def _free(self) -> None:
        run, self.run, self._job = self.run, None, None
        self.is_waiting = False
        self._freed.notify_all()
        self.on_free(self, run, time.monotonic() - self.busy_since)

    def _on_frame(self, frame: WorkerFrame) -> None:
        if frame["type"] == "spark":
            self._is_open = frame["open"]
            # During a warm-up the state stays WARMING. Otherwise another slot would open a second driver.
            if self.spark is not Spark.WARMING:
                self.spark = Spark.WARM if frame["open"] else Spark.COLD
        elif frame["type"] == "warmed":
            self._warmed = frame
            self._arrived.set()

    async def _warm(self, worker: WorkerProcess) -> None:
        self._warmed = None
        await worker.tell(message("warm"))
        warmed = await self._end_of_warming(worker)
        if warmed is None:
            code = await worker.reap()
            if worker.has_lost_guard:
                self.cut_short()
            if not self._ending.is_called_off:
                _log.warning("a worker died while it opened Spark", code=code, output=worker.output)
            return
        if warmed["error"] is not None:
            _log.warning("Spark could not be started ahead", error=warmed["error"])
        self.spark = Spark.WARM if self._is_open else Spark.COLD

    async def _end_of_warming(self, worker: WorkerProcess) -> WarmedFrame | None:
        while self._warmed is None and not worker.gone.is_set():
            await self._arrived.wait()
        return self._warmed

    async def _execute(self, worker: WorkerProcess, order: RunOrder) -> bool:
        """Execute the run. If a process died before it began the run, return False: the caller must call again."""
        execution = self._execution = RunExecution(
            order, worker, self._ending, self.services, self._on_wait, self._overdue.set
        )
        try:
            process = await execution.begin()
            if process is None:
                await self._ending.record_verdict()
                return True
            if self._release_first:
                self._release_first = False
                await process.send(message("release"))
            await execution.follow(process)
            return True
        except ChannelClosed as closed:
            return await execution.end_after_death(closed)
        finally:
            self._execution = None

    async def _kill_overdue(self) -> None:
        while True:
            await self._overdue.wait()
            # The overdue run may have ended by now, and the slot may execute another run.
            if self._execution is not None and self._ending.is_overdue:
                await self._execution.kill()

    def _on_wait(self, is_waiting: bool) -> None:
        self.is_waiting = is_waiting
        if is_waiting:
            self.on_wait(self)

    def _call_off_beginning(self) -> None:
        if self._resource_wait is not None:
            self._resource_wait.cancel()
        if self._execution is not None:
            self._execution.call_off_beginning()
