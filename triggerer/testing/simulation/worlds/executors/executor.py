"""An executor's process, with the product's own registration, and with models of the workers under its lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio

from triggerer.errors import OutcomeUnknown, TransientStoreError
from triggerer.executor.lease.registration import Registration
from triggerer.executor.sweep import SweepSchedule
from triggerer.testing.simulation.checks.checker import Violation
from triggerer.testing.simulation.kernel.loop import VirtualLoop
from triggerer.testing.simulation.worlds.executors.execution import Attempt
from triggerer.testing.simulation.worlds.executors.executor_store import (
    ExecutorConnection,
    InstanceModel,
)

if TYPE_CHECKING:
    from triggerer.testing.simulation.worlds.executors.execution import ExecutionChecker, Timeline
    from triggerer.testing.simulation.worlds.executors.executor_store import ExecutorStore

T = TypeVar("T")

_SLOTS = 2
_TO_DIE_S = 0.5
"""The most seconds from the death of a lease's guard process until the last of the worker processes is dead, too."""
_LENGTHS = (0.05, 0.5, 3.0)
"""The lengths of runs, as multiples of a lease.

A long run still executes when the lease has expired and another executor may begin the run.
"""
_UNWIND_TIMEOUT_S = 60.0


class SimulatedGuard:
    """Stands in for `LeaseGuard`, a process that ends shortly before the executor's lease.

    All workers die with the guard. The guard ends in time even if its executor stands still, because the kernel runs
    the guard's timer.
    """

    def __init__(self, timeline: Timeline, loop: VirtualLoop, ends_at: float) -> None:
        self.has_ended = False
        self.workers: list[Worker] = []
        self.returncode: int | None = None
        self._timeline = timeline
        self._loop = loop
        self._ended = anyio.Event()
        self._ends_at = 0.0
        self.extend(ends_at)

    def extend(self, ends_at: float) -> None:
        self._ends_at = ends_at
        self._timeline.call_at(ends_at, self._on_timer)

    def _on_timer(self) -> None:
        if self._timeline.now >= self._ends_at:
            self.end()

    def end(self) -> None:
        """End the guard, and kill its workers."""
        if self.has_ended:
            return
        self.has_ended = True
        self.returncode = -9
        for worker in self.workers:
            worker.kill()
        self._loop.call_soon_threadsafe(self._ended.set)

    async def wait(self) -> int:
        await self._ended.wait()
        return -9

    async def aclose(self) -> None:
        self.end()


@dataclass(eq=False, slots=True)
class Worker:
    """One attempt of a run, in its own process. The process continues while its executor stands still."""

    executor: SimulatedExecutor
    attempt: Attempt
    guard: SimulatedGuard
    is_killed: bool = False
    has_ended: bool = False

    def start(self) -> None:
        """Begin the attempt. Called when the process has started.

        If the guard has ended, the process ends at once, because the guard's pipe is closed.
        """
        timeline = self.executor.timeline
        if self.is_killed or self.guard.has_ended:
            self._end(is_finished=False)
            return
        self.executor.checker.begin(self.attempt)
        timeline.call_later(timeline.random.choice(_LENGTHS) * timeline.lease, self._finish)

    def _finish(self) -> None:
        if not self.is_killed:
            self._end(is_finished=True)

    def kill(self) -> None:
        """Let the process die soon."""
        if not self.is_killed and not self.has_ended:
            self.is_killed = True
            timeline = self.executor.timeline
            timeline.call_later(timeline.random.uniform(0.0, _TO_DIE_S), self._end)

    def _end(self, *, is_finished: bool = False) -> None:
        if not self.has_ended:
            self.has_ended = True
            self.executor.checker.end(self.attempt)
            on_end = partial(self.executor.on_end, self, is_finished=is_finished)
            self.executor.loop.call_soon_threadsafe(on_end)


class SimulatedExecutor:
    """A `LeaseHolder`, like `triggerer.executor.executor.Executor`, with models of workers."""

    def __init__(
        self, timeline: Timeline, store: ExecutorStore, checker: ExecutionChecker, name: str
    ) -> None:
        self.timeline = timeline
        self.store = store
        self.checker = checker
        self.name = name
        self.loop = VirtualLoop(
            timeline.random, timeline.now, lambda: timeline.on_step(self.loop.now)
        )
        self.stands_still_until = 0.0
        self.connection = ExecutorConnection(timeline, store, self.loop)
        self.guard: SimulatedGuard | None = None
        self._is_lease_held = False
        self._leases_lost = 0
        self._workers: list[Worker] = []
        self._unwritten: dict[int, int] = {}
        """By run, the finished attempt whose result is not written yet."""
        self._finished = asyncio.Event()
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._sweeps = SweepSchedule(timedelta(seconds=timeline.sweep_every), lambda: timeline.now)
        self._registration = Registration(
            cast("Any", self.connection),
            name,
            expiry=timedelta(seconds=timeline.lease),
            holder=cast("Any", self),
            queries=InstanceModel(),
            clock=lambda: timeline.now,
            start_guard=cast("Any", self._start_guard),
            random=timeline.random,
        )
        self._task = self.loop.create_task(self._run())

    # Methods of a `LeaseHolder`

    async def _start_guard(self, ends_at: float) -> SimulatedGuard:
        return SimulatedGuard(self.timeline, self.loop, ends_at)

    def mark_lease_lost(self) -> None:
        self._is_lease_held = False
        self._leases_lost += 1
        self._kill_workers()

    def mark_lease_acquired(self, guard: SimulatedGuard) -> None:
        self.guard = guard
        self._is_lease_held = True
        self._sweeps.ask()
        self._changed.set()

    def forgotten(self) -> list[Attempt]:
        """Return the attempts that the store assigns to this executor, but that it does not execute."""
        if not self._is_lease_held or self._stopping.is_set():
            return []
        known = {worker.attempt.run_pk for worker in self._workers} | self._unwritten.keys()
        ours = self.store.running_at(self.name)
        return [Attempt(self.name, pk, one) for pk, one in ours.items() if pk not in known]

    # The executor's event loop

    @property
    def next_due(self) -> float | None:
        """The time of the executor's next callback; None if it waits for a call from outside."""
        due = self.loop.next_due()
        return None if due is None else max(due, self.stands_still_until)

    def turn(self) -> bool:
        """Run the due callbacks. Return False once the executor has stopped without a crash."""
        self.loop.now = max(self.loop.now, self.timeline.now)
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()
        if not self._task.done():
            return True
        self.loop.close()
        if (error := self._task.exception()) is not None:
            raise Violation("S8", f"{self.name} died of {error!r}") from error
        return False

    def stop(self) -> None:
        """Let the executor finish its work and stop."""
        self._stopping.set()

    def crash(self) -> None:
        """Kill the executor. Its guard notices that, kills the workers and ends."""
        self.connection.is_alive = False
        if self.guard is not None:
            self.guard.end()
        self.loop.on_step = None
        self._task.cancel()
        self.loop.run_until_complete(asyncio.wait([self._task], timeout=_UNWIND_TIMEOUT_S))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    async def _run(self) -> None:
        while True:
            try:
                await self._registration.renew()
                break
            except TransientStoreError:
                await anyio.sleep(1.0)
        async with anyio.create_task_group() as registered:
            await registered.start(self._registration.keep)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._supervise)
                tasks.start_soon(self._write)
                await self._stopping.wait()
                tasks.cancel_scope.cancel()
            self._kill_workers()
            while self._workers:
                self._changed.clear()
                await self._changed.wait()
            registered.cancel_scope.cancel()

    def _kill_workers(self) -> None:
        for worker in self._workers:
            worker.kill()

    def on_end(self, worker: Worker, *, is_finished: bool) -> None:
        """Record that a worker's process has ended."""
        self._workers.remove(worker)
        if is_finished:
            self._unwritten[worker.attempt.run_pk] = worker.attempt.number
            self._finished.set()
        else:
            self._sweeps.ask()
        self._changed.set()

    async def _supervise(self) -> None:
        while True:
            self._changed.clear()
            if self._is_lease_held:
                try:
                    if not self._sweeps.wait_s:
                        with self._sweeps.sweeping():
                            await self._sweep()
                    await self._claim()
                except TransientStoreError:
                    # In spite of the error, the store may have assigned runs to this executor. A sweep finds them.
                    self._sweeps.ask()
                    await anyio.sleep(self.timeline.random.uniform(0.1, 2.0))
            with anyio.move_on_after(self.timeline.lease / 4):
                await self._changed.wait()

    async def _sweep(self) -> None:
        """Sweep as `Executor` does: queue lost runs again, and kill the workers of runs with another owner."""
        executing = list(self._workers)
        known = {worker.attempt.run_pk for worker in executing}
        all_known = known | self._unwritten.keys()
        ours = await self._ask(lambda: self.store.sweep(self.name, all_known, self.timeline.now))
        if ours.keys() - known:
            # These runs have results that are not written yet, so the sweep did not queue the runs again. A result may
            # be from an older attempt, while nothing executes the newer attempt. Only a later sweep can queue such a
            # run.
            self._sweeps.ask_soon()
        for worker in executing:
            if ours.get(worker.attempt.run_pk) != worker.attempt.number:
                worker.kill()

    async def _claim(self) -> None:
        room = _SLOTS - len(self._workers)
        if not room or not self._is_lease_held:
            return
        leases_lost = self._leases_lost
        claimed = await self._ask(lambda: self.store.claim_runs(self.name, room))
        for pk, attempt in claimed.items():
            if leases_lost == self._leases_lost:
                await self._begin(pk, attempt)

    async def _begin(self, pk: int, attempt: int) -> None:
        claimed = Attempt(self.name, pk, attempt)
        if any(worker.attempt == claimed for worker in self._workers):
            return
        guard = self.guard
        if attempt > 1 and not await self._ask(
            lambda: self.store.begin_run(self.name, pk, attempt)
        ):
            return
        if guard is None or guard.has_ended or not self._is_lease_held:
            return
        worker = Worker(self, claimed, guard)
        self._workers.append(worker)
        guard.workers.append(worker)
        self.timeline.call_later(self.timeline.random.uniform(0.0, 0.3), worker.start)

    async def _write(self) -> None:
        """Write the result of each run, again and again until the store accepts it."""
        while True:
            for pk, attempt in list(self._unwritten.items()):
                try:
                    await self._ask(partial(self.store.end_run, self.name, pk, attempt))
                except TransientStoreError:
                    await anyio.sleep(0.5)
                else:
                    del self._unwritten[pk]
            if not self._unwritten:
                self._finished.clear()
                await self._finished.wait()

    async def _ask(self, act: Callable[[], T]) -> T:
        """Send a request, with the store's own timeout."""
        with anyio.move_on_after(self.timeline.lease / 3):
            return await self.connection.request(act)
        raise OutcomeUnknown("the store took too long")
