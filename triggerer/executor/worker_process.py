"""A worker process as the executor sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import anyio
from anyio.abc import TaskGroup

from triggerer.executor.lease_guard_process import LeaseGuard
from triggerer.executor.worker_frames import Frame, read_frame
from triggerer.processes.child_process import ChildProcess
from triggerer.processes.ipc import ChannelClosed
from triggerer.worker.protocol import message


class WorkerProcess(ChildProcess):
    """One live worker. Made by `open_worker`, whose end kills it.

    Attributes:
        tasks: Runs what has to end with the worker.
        guard: Ends it when the executor's lease ends. None: nobody else can take the executor's runs.
        is_ready: Whether it was heard to take orders.
        has_served: Whether it was given a run before the one at hand.
    """

    tasks: TaskGroup
    guard: LeaseGuard | None = None
    is_ready = False
    has_served = False

    @property
    def has_lost_guard(self) -> bool:
        """Whether the kernel has killed it together with its guard; true as soon as it is."""
        return self.guard is not None and self.guard.has_ended

    async def send(self, content: dict[str, Any]) -> None:
        """Send a frame.

        Raises:
            ChannelClosed: It cannot be reached.
        """
        await self.channel.send(content)

    async def receive(self) -> Frame:
        """Wait for a frame.

        Raises:
            ChannelClosed: None will come.
            MalformedFrame: Something else came.
        Cancellation: A frame may be lost; nothing is to be received afterwards.
        """
        frame = read_frame(await self.channel.receive())
        self.is_ready |= frame["type"] == "ready"
        return frame

    async def ready(self) -> None:
        """Wait until it takes orders; before it was given the first one only.

        Raises, Cancellation: As `receive`.
        """
        while not self.is_ready:
            await self.receive()


@asynccontextmanager
async def open_worker(
    setup: Mapping[str, Any], guard: LeaseGuard | None = None
) -> AsyncIterator[WorkerProcess]:
    """Start a worker; when the block ends it is dead, with its JVM and whatever else it started.

    Args:
        setup: What `triggerer.worker.main` wants to know.
        guard: It dies with that, too.
    Raises:
        OSError: No process can be had.
    """
    async with (
        # SIGTERM goes to the worker alone: it stops its Spark work itself, which takes a living JVM.
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
        worker.tasks.start_soon(worker.supervise)
        try:
            with suppress(ChannelClosed):
                # One that is dead already is found out by whoever receives from it.
                await worker.send({**setup, **message("setup")})
            yield worker
        finally:
            worker.kill()
            worker.tasks.cancel_scope.cancel()
