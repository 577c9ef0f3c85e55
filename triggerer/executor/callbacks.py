"""Calls the callbacks of DAGs after their runs. A *call* here means that one process calls all callbacks of one run."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final

import anyio
import structlog

from triggerer.backoff import Backoff, log_failure, retry, warn_seldom
from triggerer.domain.attempts import CallbackOrder, RunOrder
from triggerer.errors import StoreError, TransientStoreError
from triggerer.executor.event_queries import answer
from triggerer.executor.lease.lease_guard_process import LeaseGuard
from triggerer.executor.log_files import LogFiles
from triggerer.executor.result_writer import ResultWriter
from triggerer.executor.settings import ExecutorSettings
from triggerer.executor.slots.deaths import Death
from triggerer.executor.slots.worker_frames import QueryFrame
from triggerer.executor.slots.worker_process import RunHandle, WorkerProcess, open_worker
from triggerer.processes.ipc import ChannelClosed
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups.signals import Signal, Wakeups
from triggerer.store.runs.callbacks import claim_call, mark_called, recover_calls
from triggerer.worker.protocol import message

_log = structlog.get_logger(__name__)

_HAND_BACK_S: Final = 2.0


class CallbackRunner:
    """Makes the calls that are due, one at a time, in a worker that executes no runs.

    A call is repeated only if its executor dies, stops or loses its lease before the end of the call is stored.

    Args:
        executor: The id of the executor in the table `instance`.
        get_lease: Returns the number of the executor's present lease. No two leases have the same number. None: the
            executor has no lease.
        get_guard: Returns the guard of the present lease (`triggerer.executor.lease.lease_guard`). None: there is no
            guard.
        on_called: Called with a run when the callbacks of the run have ended.
    """

    def __init__(
        self,
        database: Database,
        wakeups: Wakeups,
        result_writer: ResultWriter,
        *,
        executor: str,
        settings: ExecutorSettings,
        get_lease: Callable[[], int | None],
        get_guard: Callable[[], LeaseGuard | None],
        on_called: Callable[[RunOrder], None],
    ) -> None:
        self._on_called = on_called
        self._database = database
        self._wakeups = wakeups
        self._result_writer = result_writer
        self._executor = executor
        self._home = str(settings.home.resolve())
        self._worker = settings.for_worker()
        self._get_lease = get_lease
        self._get_guard = get_guard
        self._sweep_every = settings.sweep_every
        self._longest_call = settings.callback_timeout
        self._log_files = LogFiles()

    async def run(self) -> None:
        """Make calls until cancelled.

        Cancellation: The present call is interrupted, and becomes due again.
        """
        backoff = Backoff(first=0.2, longest=10.0)
        sweep_due = 0.0
        with self._wakeups.subscribe(Signal.CALLBACKS_DUE) as subscription:
            while True:
                try:
                    lease = self._get_lease()
                    if lease is not None:
                        if time.monotonic() >= sweep_due:
                            await self._recover()
                            sweep_due = time.monotonic() + self._sweep_every.total_seconds()
                        await self._call_all(lease)
                    backoff.reset()
                except (TransientStoreError, OSError) as error:
                    # OSError: no process can be started now.
                    delay = backoff.next_delay()
                    failures = backoff.failures
                    warn_seldom(_log, failures, "no callback can be called", error=str(error))
                    await anyio.sleep(delay)
                    continue
                await subscription.wait(self._sweep_every)

    async def _recover(self) -> None:
        is_alone = self._database.dialect == "sqlite"
        async with self._database.transaction() as session:
            given_up = await recover_calls(session, executor=self._executor, is_alone=is_alone)
        for run_id in given_up:
            _log.warning("callbacks were given up: their executors died", run=run_id)

    async def _claim(self, lease: int) -> CallbackOrder | None:
        """Claim the next call. None: no call is due, or the lease has ended.

        If the lease ended during the claim, the next sweep makes the claimed call due again.
        """
        if self._get_lease() != lease:
            return None
        async with self._database.transaction() as session:
            call = await claim_call(session, executor=self._executor, log_home=self._home)
        return call if self._get_lease() == lease else None

    async def _call_all(self, lease: int) -> None:
        call = await self._claim(lease)
        with suppress(_Interrupted):
            while call is not None:
                async with AsyncExitStack() as stack:
                    async with self._handing_back(call):
                        worker = await stack.enter_async_context(
                            open_worker(self._worker, self._get_guard())
                        )
                    call = await self._call_with(worker, call, lease)

    async def _call_with(
        self, worker: WorkerProcess, call: CallbackOrder | None, lease: int
    ) -> CallbackOrder | None:
        """Make this call and further due calls, until none is due, the worker is gone, or the lease is lost.

        Returns:
            A claimed call that another worker must make. None: all claimed calls were made.
        Raises:
            _Interrupted: The lease has ended.
        """
        while call is not None and not worker.gone.is_set():
            if self._get_lease() != lease:
                # If the lease ended before the worker started, the worker was not killed together with the guard.
                raise _Interrupted
            async with self._handing_back(call):
                await self._call(worker, call)
            self._on_called(call.run)
            await self._record(call)
            call = await self._claim(lease)
        return call

    @asynccontextmanager
    async def _handing_back(self, call: CallbackOrder) -> AsyncIterator[None]:
        """If the block is cancelled or raises an OSError, make the call due again."""
        try:
            yield
        except (OSError, anyio.get_cancelled_exc_class()):
            with anyio.move_on_after(_HAND_BACK_S, shield=True), suppress(StoreError):
                await self._record_once(call, is_done=False)
            raise

    async def _call(self, worker: WorkerProcess, call: CallbackOrder) -> None:
        """Let a process of the worker make the call.

        Raises:
            OSError: The worker died before it had a process for the call, so no callback has begun.
            _Interrupted: The worker died with the guard of the executor's lease. Unless another executor takes the call
                first, the next sweep makes the call due again.
        """
        process: RunHandle | None = None
        is_over = False
        try:
            with anyio.move_on_after(self._longest_call.total_seconds()) as limit:
                process = await worker.take()
                worker.tasks.start_soon(process.close_in_time)
                await process.send(message("callback", callback=call))
                while (frame := await process.receive())["type"] != "called":
                    if frame["type"] == "query":
                        worker.tasks.start_soon(self._answer, process, call, frame)
                is_over = True
        except ChannelClosed as closed:
            death = await _reap(worker, process)
            if worker.has_lost_guard:
                raise _Interrupted from closed
            if process is None:
                raise ChildProcessError(f"{death.victim} has died (code {death.code})") from closed
            await self._complain(call, f"their {death.victim} has died (code {death.code})")
            return
        finally:
            if process is not None:
                process.reader_done.set()
        if limit.cancelled_caught and not is_over:
            await _reap(worker, process)
            await self._complain(call, f"they took longer than {self._longest_call}")

    async def _complain(self, call: CallbackOrder, why: str) -> None:
        _log.warning("callbacks were ended", dag=call.run.dag_id, run=call.run.run_id, reason=why)
        await self._log_files.end(call.run.log_path, call.run.run_id, f"callbacks ended: {why}")

    async def _answer(self, process: RunHandle, call: CallbackOrder, frame: QueryFrame) -> None:
        reply = await answer(self._database, self._result_writer, call.run, frame)
        with suppress(ChannelClosed):
            await process.send(reply)

    async def _record(self, call: CallbackOrder) -> None:
        await retry(
            lambda: self._record_once(call, is_done=True),
            on=TransientStoreError,
            backoff=Backoff(first=0.2, longest=10.0),
            on_failure=log_failure(
                _log, "the end of a call waits for the store", run=call.run.run_id
            ),
        )

    async def _record_once(self, call: CallbackOrder, *, is_done: bool) -> None:
        async with self._database.transaction() as session:
            await mark_called(session, call, executor=self._executor, is_done=is_done)


async def _reap(worker: WorkerProcess, process: RunHandle | None) -> Death:
    if process is not None:
        return await process.reap()
    return Death(await worker.reap(), is_of_worker=True)


class _Interrupted(Exception):
    """The executor's lease has ended before the end of a call. Another executor may make this call again."""
