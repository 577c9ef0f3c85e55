"""One of the executor's slots: one run at a time, in a worker process that starts when it is needed."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import Any, Final

import anyio
import structlog

from triggerer.backoff import Backoff, warn_seldom
from triggerer.domain.attempts import RunEnd, RunOrder, Wait
from triggerer.domain.runs import RunState
from triggerer.executor.event_queries import answer
from triggerer.executor.lease.lease_guard_process import LeaseGuard
from triggerer.executor.log_files import LogFiles
from triggerer.executor.result_writer import ResultWriter
from triggerer.executor.run_tokens import RunTokens
from triggerer.executor.slots.lost_worker import RunEnding
from triggerer.executor.slots.run_progress import ProgressWriter
from triggerer.executor.slots.slot_choice import Spark, WarmUp
from triggerer.executor.slots.task_timers import TaskTimers
from triggerer.executor.slots.worker_frames import QueryFrame, WarmedFrame, WorkerFrame
from triggerer.executor.slots.worker_process import RunHandle, WorkerProcess, open_worker
from triggerer.executor.spooling.spools import Spools
from triggerer.processes.ipc import ChannelClosed, MalformedFrame
from triggerer.store.database.transactions import Database
from triggerer.store.runs.results import AttemptUpdate
from triggerer.synchronization import AutoResetEvent, Notifier
from triggerer.worker.protocol import RunReport, message

_log = structlog.get_logger(__name__)

_KILL: Final = timedelta(seconds=5)
"""The time for a worker to kill a run's process."""
_SCARCE: Final = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
"""Errors that say that memory, processes or descriptors are used up. Then a run waits until a worker can be started."""


class _AfterJob(Enum):
    """The next step of a slot after a job."""

    NEXT_JOB = auto()
    """Do the next job with this worker."""
    SAME_JOB = auto()
    """Do this job again with another process, because the process died before it began the job."""


@dataclass(frozen=True, slots=True)
class SlotSettings:
    """The settings that all slots of an executor share."""

    worker: Mapping[str, Any]
    """The settings that each worker needs, see `open_worker`."""
    cancel_grace: timedelta
    """The time that the user's code has to unwind after SIGTERM."""
    timeout_grace: timedelta
    """How long a task may outlive its timeout before its worker is killed."""


@dataclass(slots=True)
class Slot:
    """Executes one job after the other. `serve` is its only task.

    Args:
        get_guard: Returns the present guard of the executor's lease. A worker dies with the guard of its start.
        on_free: Called on the event loop each time that the slot is free again, with the run that was executed (None:
            the job was to warm up) and the duration in seconds.
        on_wait: Called when the slot's run has begun to wait for its Spark cluster.
    """

    database: Database
    result_writer: ResultWriter
    settings: SlotSettings
    get_guard: Callable[[], LeaseGuard | None]
    on_free: Callable[[Slot, RunOrder | None, float], None]
    on_wait: Callable[[Slot], None]
    spools: Spools | None = None
    """Writes the events of runs into files. None: no files."""
    tokens: RunTokens | None = None
    """Gives runs their tokens for the HTTP API. None: runs get no tokens."""
    spark: Spark = Spark.COLD
    worker: WorkerProcess | None = None
    run: RunOrder | None = None
    is_waiting: bool = False
    """True while the slot's run waits for the Spark cluster."""
    _release_first: bool = False
    _job: RunOrder | WarmUp | None = None
    _arrived: AutoResetEvent = field(default_factory=AutoResetEvent)
    _overdue: AutoResetEvent = field(default_factory=AutoResetEvent)
    _freed: Notifier = field(default_factory=Notifier)
    given_at: float = 0.0
    """The time when the slot received its job, on the monotonic clock."""
    _ending: RunEnding = field(init=False)
    """Collects what is decided about the end of the present job, or of the last job if the slot is free."""
    _process: RunHandle | None = None
    """The process of the present run."""
    _has_begun: bool = False
    """True once the process of the present run has reported something."""
    _is_open: bool = False
    _warmed: WarmedFrame | None = None
    _beginning: anyio.CancelScope | None = None
    _scarcity: Backoff = field(default_factory=lambda: Backoff(first=0.5, longest=10.0))
    _log_files: LogFiles = field(default_factory=LogFiles)
    _timers: TaskTimers = field(init=False)
    _progress: ProgressWriter = field(init=False)

    def __post_init__(self) -> None:
        self._ending = RunEnding(self.result_writer, self._log_files, None)
        self._progress = ProgressWriter(self.result_writer)
        self._timers = TaskTimers(self.result_writer, self._kill_overdue)

    @property
    def is_free(self) -> bool:
        return self._job is None

    @property
    def is_stopping(self) -> bool:
        """True if a caller has already decided how the run ends."""
        return self._ending.verdict is not None

    @property
    def was_cut_short(self) -> bool:
        """True: store no end of the run, because the run is queued again, or another executor executes it."""
        return self._ending.is_cut_short

    @property
    def has_left_launches(self) -> bool:
        """True if the run's worker died and may have left a launch behind, see `LeftLaunches`."""
        return self._ending.has_left_launches

    def release_executors(self) -> None:
        """Give the session's cores back to the cluster: now if the slot is free, else before its next run."""
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
        """Execute a run, or warm up. Call it only while the slot is free."""
        assert self._job is None
        self._job, self.given_at = job, time.monotonic()
        if isinstance(job, RunOrder):
            self.run = job
        else:
            self.spark = Spark.WARMING
        self._ending = RunEnding(self.result_writer, self._log_files, self.run)
        self._arrived.set()

    async def stop(self, verdict: RunEnd) -> None:
        """End the run, gently at first. Unless the run ends on its own, it ends as `verdict` says."""
        self._ending.verdict = verdict
        self._call_off_beginning()
        if self.worker is not None and self._process is not None:
            await self._process.stop()
            await self._end_within(self.settings.cancel_grace, self.worker, self._process)

    async def abandon(self) -> None:
        """Kill the run and record nothing, because another executor has the run."""
        self.cut_short()
        self._ending.is_cut_short = True
        if self.worker is not None:
            await self.worker.gone.wait()

    def cut_short(self) -> None:
        """Kill the run, because another executor may execute it. A result that was already decided is still saved."""
        self._ending.may_end_log = False
        self._kill()

    async def end_now(self) -> None:
        """Kill the run so that another executor can take it, and wait for the process to exit.

        A result that was already decided is still saved.
        """
        ending = self._ending
        self._kill()
        try:
            await self.idle()
        finally:
            # From now on the run may be queued again, and begin in another executor, which then writes its log.
            ending.may_end_log = False

    def _kill(self) -> None:
        self._ending.cut_short()
        self._call_off_beginning()
        if self.worker is not None:
            self.worker.kill()

    async def serve(self) -> None:
        """Execute the jobs that `give` brings. Runs until cancelled; a cancellation kills the worker."""
        while True:
            await self._next_job()
            done = True
            guard = self.get_guard()
            if guard is not None and guard.has_ended:
                self.cut_short()
            if self._ending.is_called_off:
                await self._ending.mark_unstarted()
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
                    await self._wait_for_room(self.run, error)
                else:
                    await self._ending.record_end(
                        RunState.FAILED, f"no worker could be started: {error}"
                    )
            finally:
                self._timers.stop()
                self.worker, self._process, self.spark = None, None, Spark.COLD
            if done:
                self._free()

    async def _wait_for_room(self, run: RunOrder, error: OSError) -> None:
        """Wait before trying to start a worker again. If the run is called off, stop waiting."""
        delay = self._scarcity.next_delay()
        said = "no worker can be started; the run waits"
        named = {"dag": run.dag_id, "run": run.run_id, "error": str(error)}
        warn_seldom(_log, self._scarcity.failures, said, **named)
        with anyio.CancelScope() as self._beginning:
            if not self._ending.is_called_off:
                await anyio.sleep(delay)
        self._beginning = None

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
            Whether the present job is done. If not, the next worker must do it.
        """
        worker.tasks.start_soon(self._notice_end, worker)
        worker.tasks.start_soon(self._end_overdue, worker)
        while True:
            job = self._job
            assert job is not None
            if isinstance(job, RunOrder):
                then = await self._execute(worker, job)
            else:
                then = await self._warm(worker)
            if then is _AfterJob.SAME_JOB:
                if worker.gone.is_set():
                    return False
                continue
            if worker.gone.is_set() or self._ending.is_cut_short:
                return True
            self._free()
            await self._next_job(worker)
            if worker.gone.is_set():
                # The worker died while it was idle. That is no reason to fail the next run.
                return False

    def _free(self) -> None:
        run, self.run, self._job = self.run, None, None
        self.is_waiting = False
        self._timers.stop()
        self._freed.notify_all()
        self.on_free(self, run, time.monotonic() - self.given_at)

    def _on_frame(self, frame: WorkerFrame) -> None:
        if frame["type"] == "spark":
            self._is_open = frame["open"]
            # During a warm-up the state stays WARMING. Otherwise another slot would open a second driver.
            if self.spark is not Spark.WARMING:
                self.spark = Spark.WARM if frame["open"] else Spark.COLD
        elif frame["type"] == "warmed":
            self._warmed = frame
            self._arrived.set()

    async def _warm(self, worker: WorkerProcess) -> _AfterJob:
        self._warmed = None
        await worker.tell(message("warm"))
        warmed = await self._end_of_warming(worker)
        if warmed is None:
            code = await worker.reap()
            if worker.has_lost_guard:
                self.cut_short()
            if not self._ending.is_called_off:
                _log.warning("a worker died while it opened Spark", code=code, output=worker.output)
            return _AfterJob.NEXT_JOB
        if warmed["error"] is not None:
            _log.warning("Spark could not be started ahead", error=warmed["error"])
        self.spark = Spark.WARM if self._is_open else Spark.COLD
        return _AfterJob.NEXT_JOB

    async def _end_of_warming(self, worker: WorkerProcess) -> WarmedFrame | None:
        while self._warmed is None and not worker.gone.is_set():
            await self._arrived.wait()
        return self._warmed

    async def _execute(self, worker: WorkerProcess, order: RunOrder) -> _AfterJob:
        self._has_begun = False
        try:
            process = self._process = await self._begin(worker, order)
            if process is None:
                await self._ending.mark_unstarted()
                return _AfterJob.NEXT_JOB
            await self._send_order(worker, process, order)
            await self._follow(worker, process, order)
            return _AfterJob.NEXT_JOB
        except ChannelClosed as closed:
            return await self._end_after_death(worker, closed)
        finally:
            self._process = None

    async def _send_order(self, worker: WorkerProcess, process: RunHandle, order: RunOrder) -> None:
        worker.tasks.start_soon(process.close_in_time)
        if self._release_first:
            self._release_first = False
            await process.send(message("release"))
        given = order if self.tokens is None else await self.tokens.add_to(order)
        await process.send(message("run", run=given))

    async def _follow(self, worker: WorkerProcess, process: RunHandle, order: RunOrder) -> None:
        """Store what the run's process reports, and answer its queries, until it reports the run's end."""
        while True:
            frame = await process.receive()
            if frame["run"] != order.run_pk:
                # A frame about another run, which our own code never sends.
                continue
            self._has_begun = True
            match frame["type"]:
                case "results":
                    self._store(order, frame["report"])
                    if frame["report"].end is not None:
                        return
                case "started":
                    self._timers.follow(order, frame["start"], self.settings.timeout_grace)
                case "waiting":
                    self._record_wait(order, frame["wait"])
                case "launch":
                    update = AttemptUpdate(order, launches=(frame["launch"],))
                    self.result_writer.submit_nowait(update)
                case "progress":
                    worker.tasks.start_soon(self._progress.write, order, frame["progress"])
                case "query":
                    worker.tasks.start_soon(self._answer, process, order, frame)

    def _store(self, order: RunOrder, report: RunReport) -> None:
        ended = [] if report.end else [task.task_id for task in report.tasks]
        self._timers.stop(*ended)
        self.result_writer.submit_nowait(
            AttemptUpdate(
                order,
                report.tasks,
                report.end,
                is_unloaded=report.is_unloaded,
                is_blocked=report.is_blocked,
            )
        )

    async def _end_after_death(self, worker: WorkerProcess, closed: ChannelClosed) -> _AfterJob:
        """Decide what follows after the run's process died, and store the run's end if it does not begin again."""
        self._timers.stop()
        code = await self._reap(worker, closed)
        if isinstance(closed, MalformedFrame):
            await self._ending.record_death(
                code, output=worker.output, has_begun=True, malformed=closed.reason
            )
            return _AfterJob.NEXT_JOB
        has_begun = self._has_begun or (self._process is not None and not closed.unread)
        # If a worker dies before it is ready, the next worker would probably die too. So the run fails.
        if not has_begun and worker.is_ready and not self._ending.is_called_off:
            if code != 0:
                run_id = self.run and self.run.run_id
                _log.warning("a worker died before it took a run", run=run_id, code=code)
            return _AfterJob.SAME_JOB
        await self._ending.record_death(code, output=worker.output, has_begun=has_begun)
        return _AfterJob.NEXT_JOB

    async def _begin(self, worker: WorkerProcess, order: RunOrder) -> RunHandle | None:
        """Return a process for this attempt, and store that a repeated attempt begins. None: do not execute the run.

        An attempt counts once its begin is stored: if the service dies afterwards, the run may be the cause. The begin
        is stored when there is a process. So an attempt does not count if the service is killed while a worker starts.
        """
        process: RunHandle | None = None
        is_ours = False
        try:
            with anyio.CancelScope() as self._beginning:
                if not self._ending.is_called_off:
                    process = await worker.take()
                    is_ours = order.attempt <= 1 or await self.result_writer.begin(order)
        finally:
            self._beginning = None
        if is_ours and not self._ending.is_called_off:
            return process
        if process is not None:
            worker.give_back(process)
        return None

    def _call_off_beginning(self) -> None:
        # The store may be unavailable for a long time, so the wait for it must be cancelled.
        if self._beginning is not None:
            self._beginning.cancel()

    def _record_wait(self, order: RunOrder, wait: Wait) -> None:
        self.result_writer.submit_nowait(AttemptUpdate(order, wait=wait))
        self.is_waiting = wait.reason is not None
        if self.is_waiting:
            self.on_wait(self)

    async def _answer(self, process: RunHandle, order: RunOrder, frame: QueryFrame) -> None:
        reply = await answer(self.database, self.result_writer, order, frame, self.spools)
        # If the process is gone, the task that receives from it notices.
        with suppress(ChannelClosed):
            await process.send(reply)

    def _kill_overdue(self, reason: str) -> None:
        self._ending.verdict = RunEnd(RunState.FAILED, datetime.now(UTC), reason)
        self._overdue.set()

    async def _end_overdue(self, worker: WorkerProcess) -> None:
        while True:
            await self._overdue.wait()
            if self._process is not None:
                await self._end_within(timedelta(0), worker, self._process)

    @staticmethod
    async def _end_within(grace: timedelta, worker: WorkerProcess, process: RunHandle) -> None:
        """Wait for the end of a run's process. Then kill it, and if that does not help, its worker."""
        if await process.is_over_within(grace):
            return
        await process.kill()
        if not await process.is_over_within(_KILL):
            worker.kill()

    async def _reap(self, worker: WorkerProcess, closed: ChannelClosed) -> int:
        if self._process is None:
            code = await worker.reap()
        else:
            if isinstance(closed, MalformedFrame):
                # A process that sent such data may not end on its own.
                await self._process.kill()
            code = await self._process.reap()
        if worker.has_lost_guard:
            # The worker died with the lease's guard. The executor may not have noticed this yet.
            self.cut_short()
        return code
