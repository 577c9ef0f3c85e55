"""Starts, reaches and ends a worker, and the processes that the worker forks for runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from triggerer.executor.lease.lease_guard_process import LeaseGuard
from triggerer.executor.slots.deaths import Death
from triggerer.executor.slots.worker_frames import (
    RunFrame,
    WorkerFrame,
    read_run_frame,
    read_worker_frame,
)
from triggerer.processes.child_process import ChildProcess
from triggerer.processes.ipc import Channel, ChannelClosed, MalformedFrame
from triggerer.synchronization import Notifier
from triggerer.worker.protocol import message

_REAP_S: Final = 10.0
"""The time for a worker to end a process and its descendants."""


class RunHandle:
    """The executor's handle of a process that a worker has forked for one order: a run, or callbacks.

    Attributes:
        ended: Set when the process and its descendants are gone.
        is_over: Set when the process or its worker is gone.
        reader_done: Set when the executor will receive no further frames of the process.
        code: The exit code. Negative: the number of the signal that killed the process. None: the worker has reported
            no end.
    """

    def __init__(self, worker: WorkerProcess, number: int, pid: int, channel: Channel) -> None:
        self.pid: Final = pid
        self.ended: Final = anyio.Event()
        self.is_over: Final = anyio.Event()
        self.reader_done: Final = anyio.Event()
        self.code: int | None = None
        self._worker = worker
        self._number = number
        self._channel = channel

    async def send(self, content: dict[str, Any]) -> None:
        """Send a frame.

        Raises:
            ChannelClosed: The process cannot be reached.
        """
        await self._channel.send(content)

    async def receive(self) -> RunFrame:
        """Wait for a frame.

        Raises:
            ChannelClosed: No further frame will come.
            MalformedFrame: The data is no frame of a run's process.
        Cancellation: A frame may be lost. Do not call `receive` again.
        """
        return read_run_frame(await self._channel.receive())

    async def stop(self) -> None:
        """Send SIGTERM, so that the user's code unwinds. Does nothing if the process is gone."""
        await self._worker.tell(message("stop", process=self._number))

    async def kill(self) -> None:
        """Kill the process and its descendants, but not the worker. Does nothing if the process is gone."""
        await self._worker.tell(message("kill", process=self._number))

    async def reap(self) -> Death:
        """Return how the process ended. If the process has not ended after a second, kill it.

        The worker reports the end of the process, so `WorkerProcess.listen` must be running. If no report comes, the
        worker is dead or hangs: kill the worker, and return how the worker ended.
        """
        with anyio.move_on_after(1):
            await self.is_over.wait()
        if not self.is_over.is_set():
            await self.kill()
            with anyio.move_on_after(_REAP_S, shield=True):
                await self.is_over.wait()
        if self.code is None:
            return Death(await self._worker.reap(), is_of_worker=True)
        return Death(self.code)

    async def is_over_within(self, grace: timedelta) -> bool:
        """Wait until the process is gone, or its worker; return False if that takes longer than `grace`."""
        with anyio.move_on_after(grace.total_seconds()):
            await self.is_over.wait()
        return self.is_over.is_set()

    def mark_ended(self, code: int) -> None:
        """Store the exit code that the worker has reported, and stop the channel.

        The frames that the process has sent can still be received. A descendant of the process may still have the
        channel, but can send no further frames.
        """
        self.code = code
        self.ended.set()
        self.is_over.set()
        self.shut_down()

    def shut_down(self) -> None:
        """Stop the channel: only frames that were already sent can be received."""
        self._channel.shut_down()

    async def aclose(self) -> None:
        """Close the channel to the process. The process, or its worker, must have ended."""
        await self._channel.aclose()

    async def close_in_time(self) -> None:
        """Wait for the end of the process, and close the channel once its last frames were received."""
        await self.is_over.wait()
        with anyio.move_on_after(_REAP_S):
            await self.reader_done.wait()
        await self._worker.close(self)


class WorkerProcess(ChildProcess):
    """One live worker, created by `open_worker`. At the end of the block of `open_worker`, the worker is killed.

    Attributes:
        tasks: Runs tasks that must end with the worker.
        guard: Ends the worker when the executor's lease ends. None with SQLite, which allows no other executor.
        is_ready: True once the worker has sent `ready`.
        on_frame: Receives the worker's frames about Spark.
    """

    tasks: TaskGroup
    guard: LeaseGuard | None = None
    is_ready = False
    on_frame: Callable[[WorkerFrame], None] | None = None
    _is_silent = False
    _prepared: RunHandle | None = None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._processes: dict[int, RunHandle] = {}
        self._open: set[RunHandle] = set()
        self._changed = Notifier()

    @property
    def has_lost_guard(self) -> bool:
        """True as soon as the kernel has killed the worker together with its guard."""
        return self.guard is not None and self.guard.has_ended

    async def tell(self, content: dict[str, Any]) -> None:
        """Send a frame. If the worker is gone, do nothing: `gone` is set."""
        with suppress(ChannelClosed):
            await self.channel.send(content)

    async def take(self) -> RunHandle:
        """Wait until a process is ready for an order, and return this process. No other caller gets it.

        Raises:
            ChannelClosed: The worker is gone.
        Cancellation: No process is taken.
        """
        while self._prepared is None:
            if self._is_silent:
                raise ChannelClosed(unread=False)
            await self._changed.wait()
        process, self._prepared = self._prepared, None
        return process

    def give_back(self, process: RunHandle) -> None:
        """Let a later `take` return this process, which has received no frame. If it has ended, close its channel."""
        if process.ended.is_set():
            self.tasks.start_soon(self.close, process)
        else:
            self._prepared = process
            self._changed.notify_all()

    async def send_ahead(self, content: dict[str, Any]) -> None:
        """Send a frame to the process that waits for the next order, if there is one."""
        if self._prepared is not None:
            with suppress(ChannelClosed):
                await self._prepared.send(content)

    async def end_processes(self) -> None:
        """Wait until the worker is gone. Then set `is_over` of all its processes."""
        await self.gone.wait()
        for process in self._processes.values():
            process.is_over.set()

    async def listen(self) -> None:
        """Receive the worker's frames until it is gone."""
        self.channel.accepts_descriptors = True
        try:
            while True:
                frame = read_worker_frame(await self.channel.receive())
                match frame["type"]:
                    case "ready":
                        self.is_ready = True
                    case "prepared":
                        await self._add(frame["process"], frame["pid"])
                    case "ended":
                        self._remove(frame["process"], frame["code"])
                    case _:
                        if self.on_frame is not None:
                            self.on_frame(frame)
        except MalformedFrame:
            # Users' code cannot have sent this frame, because a worker executes none. So the worker is of another
            # release, or its memory is damaged.
            self.kill()
        except ChannelClosed:
            pass
        finally:
            self._is_silent = True
            self._changed.notify_all()
            for process in self._processes.values():
                process.shut_down()

    async def _add(self, number: int, pid: int) -> None:
        channel = await Channel.over(self.channel.descriptors.popleft())
        process = self._processes[number] = RunHandle(self, number, pid, channel)
        if self.gone.is_set():
            process.is_over.set()
        self._open.add(process)
        self._prepared = process
        self._changed.notify_all()

    def _remove(self, number: int, code: int) -> None:
        process = self._processes.pop(number, None)
        if process is None:
            return
        process.mark_ended(code)
        if process is self._prepared:
            self._prepared = None
            self.tasks.start_soon(self.close, process)

    async def close(self, process: RunHandle) -> None:
        """Close the channel to a process that has ended."""
        await process.aclose()
        self._open.discard(process)

    async def aclose(self, grace_s: float = 0.0) -> None:
        await super().aclose(grace_s)
        with anyio.move_on_after(1, shield=True):
            for process in list(self._open):
                await self.close(process)


@asynccontextmanager
async def open_worker(
    setup: Mapping[str, Any],
    guard: LeaseGuard | None = None,
    on_frame: Callable[[WorkerFrame], None] | None = None,
) -> AsyncIterator[WorkerProcess]:
    """Start a worker. When the block ends, the worker is dead, with its JVM and all its descendants.

    Args:
        setup: The settings that `triggerer.worker.main` needs.
        guard: The worker also dies when this guard dies.
        on_frame: Receives the worker's frames about Spark.
    Raises:
        OSError: No process can be started.
        Exception: An error of the block.
    """
    failure: Exception | None = None
    async with (
        aclosing(
            await WorkerProcess.start(
                "triggerer.worker.main",
                captures_output=True,
                lifelines=() if guard is None else (guard.lifeline,),
            )
        ) as worker,
        anyio.create_task_group() as worker.tasks,
    ):
        worker.guard = guard
        worker.on_frame = on_frame
        worker.tasks.start_soon(worker.supervise)
        worker.tasks.start_soon(worker.end_processes)
        worker.tasks.start_soon(worker.listen)
        try:
            # If the worker is already dead, `listen` notices.
            await worker.tell({**setup, **message("setup")})
            yield worker
        except Exception as error:  # noqa: BLE001 - raised below
            # The group would wrap the error in an `ExceptionGroup`.
            failure = error
        finally:
            worker.kill()
            worker.tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
