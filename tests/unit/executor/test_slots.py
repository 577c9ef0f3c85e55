"""How a slot ends its runs. Doubles replace the worker and the store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from tests.run_orders import order
from triggerer.domain.attempts import RunEnd, RunOrder
from triggerer.domain.runs import RunState
from triggerer.executor.slots import slot as slot_module
from triggerer.executor.slots.deaths import Death
from triggerer.executor.slots.run_execution import RunServices
from triggerer.executor.slots.slot import Slot, SlotSettings
from triggerer.executor.slots.slot_choice import Spark, WarmUp
from triggerer.processes.ipc import ChannelClosed
from triggerer.store.runs.results import AttemptUpdate
from triggerer.worker.protocol import RunReport, TaskStart, message

NONE = cast("Any", None)
CANCELLED = RunEnd(RunState.CANCELLED, datetime.now(UTC), "cancelled")


async def _settle() -> None:
    """Let all tasks and the timers that are due do their work."""
    for _ in range(30):
        await checkpoint()


class Process:
    """A run's process that reports what the test says."""

    def __init__(self) -> None:
        self.reader_done = anyio.Event()
        self.run: RunOrder | None = None
        self.has_order = anyio.Event()
        self.was_killed = False
        self.is_over = anyio.Event()
        self._frames: list[dict[str, Any]] = []
        self._reported = anyio.Event()

    async def send(self, content: dict[str, Any]) -> None:
        self.run = content["run"]
        self.has_order.set()

    async def receive(self) -> dict[str, Any]:
        while not self._frames:
            if self.is_over.is_set():
                raise ChannelClosed(unread=False)
            await self._reported.wait()
            self._reported = anyio.Event()
        return self._frames.pop(0)

    def report(self, kind: str, **fields: Any) -> None:
        assert self.run is not None
        self._frames.append(message(kind, run=self.run.run_pk, **fields))
        self._reported.set()

    async def overrun(self) -> None:
        """Report a task whose timeout is over at once, and wait until the executor has noticed that."""
        start = TaskStart("t", 1, datetime.now(UTC), timeout_s=0.0)
        self.report("started", start=start)
        await _settle()

    def end(self) -> None:
        """Report that the run has succeeded."""
        end = RunEnd(RunState.SUCCESS, datetime.now(UTC))
        self.report("results", report=RunReport((), end))

    def die(self) -> None:
        self.is_over.set()
        self._reported.set()

    async def reap(self) -> Death:
        await self.is_over.wait()
        return Death(-9)

    async def close_in_time(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def kill(self) -> None:
        self.was_killed = True

    async def is_over_within(self, grace: timedelta) -> bool:
        with anyio.move_on_after(grace.total_seconds()):
            await self.is_over.wait()
        return self.is_over.is_set()


class Worker:
    """A worker with a process for each of its runs."""

    has_lost_guard = False
    is_ready = True
    output = ""

    def __init__(self, tasks: TaskGroup, on_frame: Callable[[Any], None]) -> None:
        self.tasks = tasks
        self.on_frame = on_frame
        self.gone = anyio.Event()
        self.processes: list[Process] = []

    async def take(self) -> Process:
        self.processes.append(Process())
        return self.processes[-1]

    async def tell(self, content: dict[str, Any]) -> None:
        pass

    def kill(self) -> None:
        self.gone.set()


class ResultWriter:
    """Collects the ends of runs."""

    def __init__(self) -> None:
        self.ends: dict[int, RunState] = {}

    def submit_nowait(self, update: AttemptUpdate) -> None:
        if update.end is not None:
            self.ends[update.order.run_pk] = update.end.state


class Stage:
    """A slot that is served, with its workers."""

    def __init__(self) -> None:
        self.writer = ResultWriter()
        self.workers: list[Worker] = []
        self.next_jobs: list[RunOrder | WarmUp] = []
        """The jobs that the slot receives as soon as it is free."""
        services = RunServices(NONE, cast("Any", self.writer), timedelta(0))
        settings = SlotSettings({}, cancel_grace=timedelta(hours=1))
        self.slot = Slot(services, settings, lambda: None, self._on_free, lambda slot: None)

    def _on_free(self, slot: Slot, run: RunOrder | None, seconds: float) -> None:
        if self.next_jobs:
            slot.give(self.next_jobs.pop(0))

    @asynccontextmanager
    async def open_worker(
        self, setup: Any, guard: Any, on_frame: Callable[[Any], None]
    ) -> AsyncIterator[Worker]:
        async with anyio.create_task_group() as tasks:
            self.workers.append(Worker(tasks, on_frame))
            yield self.workers[-1]
            tasks.cancel_scope.cancel()

    async def process_of(self, number: int) -> Process:
        """Return the first worker's process with this number, once it has its order."""
        while not self.workers or len(self.workers[0].processes) <= number:
            await checkpoint()
        process = self.workers[0].processes[number]
        await process.has_order.wait()
        return process


def is_warm(stage: Stage) -> bool:
    return stage.slot.spark is Spark.WARM


@asynccontextmanager
async def open_stage(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    stage = Stage()
    monkeypatch.setattr(slot_module, "open_worker", stage.open_worker)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stage.slot.serve)
        with anyio.fail_after(30):
            yield stage
        tasks.cancel_scope.cancel()


async def test_a_cancellation_does_not_hit_the_next_run_of_the_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_stage(monkeypatch) as stage:
        cancelled, later = order(1), order(2)
        stage.slot.give(cancelled)
        stage.next_jobs.append(later)
        (await stage.process_of(0)).end()
        await stage.process_of(1)
        # The executor decided on this while the slot had the cancelled run.
        await stage.slot.stop(cancelled, CANCELLED)
        assert stage.slot.run is later
        assert not stage.slot.is_stopping
        assert stage.writer.ends == {1: RunState.SUCCESS}


async def test_the_killing_of_an_overdue_run_does_not_hit_a_later_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_stage(monkeypatch) as stage:
        stage.slot.give(order(1))
        stage.next_jobs += [order(2), order(3)]
        first = await stage.process_of(0)
        await first.overrun()
        assert first.was_killed
        # The first run reports its end just after the kill. Its process stays alive until `is_over` is set.
        first.end()
        second = await stage.process_of(1)
        await second.overrun()
        second.end()
        third = await stage.process_of(2)
        first.is_over.set()
        await _settle()
        assert not third.was_killed
        assert stage.slot.run is not None
        assert stage.slot.run.run_pk == 3


async def test_a_cancelled_run_is_not_failed_by_the_timer_of_a_task(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with open_stage(monkeypatch) as stage, anyio.create_task_group() as tasks:
        run = order(1, log_path=str(tmp_path / "run.log"))
        stage.slot.give(run)
        process = await stage.process_of(0)
        tasks.start_soon(stage.slot.stop, run, CANCELLED)
        await _settle()
        await process.overrun()
        assert not process.was_killed
        process.die()
        await stage.slot.idle()
        assert stage.writer.ends == {1: RunState.CANCELLED}


async def test_a_worker_whose_warm_up_fails_is_not_warm_because_of_an_earlier_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_stage(monkeypatch) as stage:
        stage.slot.give(WarmUp())
        await _settle()
        (first,) = stage.workers
        first.on_frame(message("spark", open=True))
        first.on_frame(message("warmed", error=None))
        await _settle()
        assert is_warm(stage)
        first.kill()
        await _settle()
        stage.slot.give(WarmUp())
        await _settle()
        _, second = stage.workers
        second.on_frame(message("warmed", error="no master"))
        await _settle()
        assert not is_warm(stage)
