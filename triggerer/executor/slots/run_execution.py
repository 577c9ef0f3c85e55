"""Executes one run in one process of a worker: sends the order to the process, and stores what the process reports."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

import anyio
import structlog
from anyio.abc import TaskGroup

from triggerer.domain.attempts import RunEnd, RunOrder, Wait
from triggerer.domain.runs import RunState
from triggerer.executor.event_queries import answer
from triggerer.executor.result_writer import ResultWriter
from triggerer.executor.run_tokens import RunTokens
from triggerer.executor.slots.deaths import Death
from triggerer.executor.slots.run_ending import RunEnding
from triggerer.executor.slots.run_progress import ProgressWriter
from triggerer.executor.slots.task_timers import TaskTimers
from triggerer.executor.slots.worker_frames import QueryFrame
from triggerer.executor.slots.worker_process import RunHandle, WorkerProcess
from triggerer.executor.spooling.spools import Spools
from triggerer.processes.ipc import ChannelClosed, MalformedFrame
from triggerer.store.database.transactions import Database
from triggerer.store.runs.results import AttemptUpdate
from triggerer.worker.protocol import RunReport, message

_log = structlog.get_logger(__name__)

_KILL: Final = timedelta(seconds=5)
"""The time for a worker to kill a run's process."""


@dataclass(frozen=True, slots=True)
class RunServices:
    """The parts of the executor that its runs use."""

    database: Database
    result_writer: ResultWriter
    timeout_grace: timedelta
    """If a task outlives its timeout by more than this time, its process is killed."""
    spools: Spools | None = None
    """Writes the events of runs into files. None: no files."""
    tokens: RunTokens | None = None
    """Gives runs their API tokens. None: runs get no tokens."""


@dataclass(slots=True)
class RunExecution:
    """Executes one run with one process of a worker. Call `begin`, then `follow`.

    Args:
        ending: The decisions about the run's end. If a task outlives its timeout by more than `timeout_grace`, the
            task's timer sets `ending.verdict` and `ending.is_overdue`, unless there is a verdict already.
        on_wait: Called with True when the run begins to wait, for instance for its Spark cluster or a missing DAG
            file. Called with False when the run continues.
        on_overdue: Called after a task's timer has set the verdict. It is not a coroutine function, so it cannot await
            `kill`. It must wake a task that calls `kill`.
    """

    order: RunOrder
    worker: WorkerProcess
    ending: RunEnding
    services: RunServices
    on_wait: Callable[[bool], None]
    on_overdue: Callable[[], None]
    _process: RunHandle | None = None
    _beginning: anyio.CancelScope | None = None
    _has_begun: bool = False
    """True once the process has reported something."""
    _timers: TaskTimers = field(init=False)
    _progress: ProgressWriter = field(init=False)

    def __post_init__(self) -> None:
        writer, grace = self.services.result_writer, self.services.timeout_grace
        # Use `partial`, because a method of this object would make a reference cycle. When the garbage collector freed
        # 3,500 such cycles, it stopped the event loop for 0.3 s.
        judge = partial(_judge_overdue, self.ending, self.on_overdue)
        self._timers = TaskTimers(writer, self.order, grace, judge)
        self._progress = ProgressWriter(writer, self.order)

    async def begin(self) -> RunHandle | None:
        """Store the attempt's start, and return a process for the attempt. None: do not execute the run.

        If executors die in several attempts of a run, the run fails (`recover_orphans`). Only attempts whose start is
        stored count, because other attempts cannot have killed an executor. The claim stores the first attempt's start.

        Raises:
            ChannelClosed: The worker is gone.
        """
        process: RunHandle | None = None
        is_ours = False
        try:
            with anyio.CancelScope() as self._beginning:
                if not self.ending.is_called_off:
                    process = await self.worker.take()
                    is_ours = await self._store_begin()
        finally:
            self._beginning = None
        if process is None:
            return None
        if not is_ours or self.ending.is_called_off:
            self.worker.give_back(process)
            return None
        self.worker.tasks.start_soon(process.close_in_time)
        self._process = process
        return process

    async def _store_begin(self) -> bool:
        """Store the start of the attempt, unless it is the run's first. Return False if another attempt has the run."""
        return self.order.attempt <= 1 or await self.services.result_writer.begin(self.order)

    def call_off_beginning(self) -> None:
        # The store may be unavailable for a long time, so the wait for it must be cancelled.
        if self._beginning is not None:
            self._beginning.cancel()

    async def follow(self, process: RunHandle) -> None:
        """Send the order, store the process's reports, and answer its queries, until the process reports the run's end.

        Raises:
            ChannelClosed: The process or its worker died. Call `end_after_death`.
        """
        closed: ChannelClosed | None = None
        # When the run ends, the task group cancels the answers that are under way. Otherwise `Spools` could write files
        # for the run after the run's files were deleted.
        async with anyio.create_task_group() as answers:
            try:
                await self._follow(process, answers)
            except ChannelClosed as error:
                # The group would wrap the error in an `ExceptionGroup`.
                closed = error
            finally:
                self._timers.stop()
                process.reader_done.set()
                answers.cancel_scope.cancel()
        if closed is not None:
            raise closed

    async def _follow(self, process: RunHandle, answers: TaskGroup) -> None:
        tokens = self.services.tokens
        given = self.order if tokens is None else await tokens.add_to(self.order)
        await process.send(message("run", run=given))
        while not await self._handle_frame(process, answers):
            pass

    async def _handle_frame(self, process: RunHandle, answers: TaskGroup) -> bool:
        """Wait for the next frame, and return whether it reports the run's end."""
        frame = await process.receive()
        if frame["run"] != self.order.run_pk:
            # Our own code never sends a frame about another run. Ignore the frame.
            return False
        self._has_begun = True
        match frame["type"]:
            case "results":
                self._store(frame["report"])
                return frame["report"].end is not None
            case "started":
                self._timers.follow(frame["start"])
            case "waiting":
                self._record_wait(frame["wait"])
            case "launch":
                self._submit(AttemptUpdate(self.order, launches=(frame["launch"],)))
            case "progress":
                self.worker.tasks.start_soon(self._progress.write, frame["progress"])
            case "query":
                answers.start_soon(self._answer, process, frame)
        return False

    async def stop(self, grace: timedelta) -> None:
        """Send SIGTERM to the process, and SIGKILL if it still lives after `grace`."""
        if self._process is not None:
            await self._process.stop()
            await self._end_within(grace, self._process)

    async def kill(self) -> None:
        """Kill the process. If it does not end, kill its worker."""
        if self._process is not None:
            await self._end_within(timedelta(0), self._process)

    async def end_after_death(self, closed: ChannelClosed) -> bool:
        """Store the run's end after its process died. Return False if another process must begin the run again."""
        death = await self._reap(closed)
        if isinstance(closed, MalformedFrame):
            await self.ending.record_death(
                death, output=self.worker.output, has_begun=True, malformed=closed.reason
            )
            return True
        has_begun = self._has_begun or (self._process is not None and not closed.unread)
        # If the worker was ready and the run has not begun, another process can execute the run. If the worker died
        # during its own start, the run fails, because the next worker would probably die during its start too.
        if not has_begun and self.worker.is_ready and not self.ending.is_called_off:
            if death.code != 0:
                _log.warning(
                    "a worker died before it took a run"
                    if death.is_of_worker
                    else "a process died before it took a run",
                    run=self.order.run_id,
                    code=death.code,
                )
            return False
        await self.ending.record_death(death, output=self.worker.output, has_begun=has_begun)
        return True

    def _submit(self, update: AttemptUpdate) -> None:
        self.services.result_writer.submit_nowait(update)

    def _store(self, report: RunReport) -> None:
        ended = [] if report.end else [task.task_id for task in report.tasks]
        self._timers.stop(*ended)
        self._submit(
            AttemptUpdate(
                self.order,
                report.tasks,
                report.end,
                is_unloaded=report.is_unloaded,
                is_blocked=report.is_blocked,
            )
        )

    def _record_wait(self, wait: Wait) -> None:
        self._submit(AttemptUpdate(self.order, wait=wait))
        self.on_wait(wait.reason is not None)

    async def _answer(self, process: RunHandle, frame: QueryFrame) -> None:
        services = self.services
        reply = await answer(
            services.database, services.result_writer, self.order, frame, services.spools
        )
        # If the process is gone, ignore the error: the task that receives from this process notices it, too.
        with suppress(ChannelClosed):
            await process.send(reply)

    async def _end_within(self, grace: timedelta, process: RunHandle) -> None:
        """Wait up to `grace` for the end of the process, then kill it. If it survives, kill its worker."""
        if await process.is_over_within(grace):
            return
        await process.kill()
        # If the process has reported the run's end, do not kill the worker: the worker may already execute another run.
        if not await process.is_over_within(_KILL) and not process.reader_done.is_set():
            self.worker.kill()

    async def _reap(self, closed: ChannelClosed) -> Death:
        if self._process is None:
            death = Death(await self.worker.reap(), is_of_worker=True)
        else:
            if isinstance(closed, MalformedFrame):
                # A process that sent malformed data may not end on its own.
                await self._process.kill()
            death = await self._process.reap()
        if self.worker.has_lost_guard:
            # The worker died with the lease's guard. The executor may not have noticed this yet.
            self.ending.give_away()
        return death


def _judge_overdue(ending: RunEnding, on_overdue: Callable[[], None], reason: str) -> None:
    if ending.verdict is not None:
        # The run is being stopped already. A user may have cancelled it.
        return
    ending.verdict = RunEnd(RunState.FAILED, datetime.now(UTC), reason)
    ending.is_overdue = True
    on_overdue()
