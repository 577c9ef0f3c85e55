"""The executor's side of a worker process."""

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
    """One live worker, made by `open_worker`. The end of that block kills it.

    Attributes:
        tasks: Runs tasks that must end with the worker.
        guard: Ends the worker when the executor's lease ends. None: nobody else can take the executor's runs.
        is_ready: True once the worker has said that it accepts orders.
        has_served: True if the worker had a run before the present one.
    """

    tasks: TaskGroup
    guard: LeaseGuard | None = None
    is_ready = False
    has_served = False

    @property
    def has_lost_guard(self) -> bool:
        """True as soon as the kernel has killed the worker together with its guard."""
        return self.guard is not None and self.guard.has_ended

    async def send(self, content: dict[str, Any]) -> None:
        """Send a frame.

        Raises:
            ChannelClosed: The worker cannot be reached.
        """
        await self.channel.send(content)

    async def receive(self) -> Frame:
        """Wait for a frame.

        Raises:
            ChannelClosed: No further frame will come.
            MalformedFrame: The data is no frame of a worker.
        Cancellation: A frame may be lost. Do not receive afterwards.
        """
        frame = read_frame(await self.channel.receive())
        self.is_ready |= frame["type"] == "ready"
        return frame

    async def ready(self) -> None:
        """Wait until the worker accepts orders. Call it only before the first order.

        Raises and cancellation: See `receive`.
        """
        while not self.is_ready:
            await self.receive()


@asynccontextmanager
async def open_worker(
    setup: Mapping[str, Any], guard: LeaseGuard | None = None
) -> AsyncIterator[WorkerProcess]:
    """Start a worker. When the block ends, the worker is dead, with its JVM and all its descendants.

    Args:
        setup: The settings that `triggerer.worker.main` needs.
        guard: The worker dies with this guard as well.
    Raises:
        OSError: No process can be started.
    """
    async with (
        # SIGTERM goes to the worker alone. The worker stops its Spark work itself, which needs a living JVM.
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
                # If the worker is already dead, the next `receive` reports it.
                await worker.send({**setup, **message("setup")})
            yield worker
        finally:
            worker.kill()
            worker.tasks.cancel_scope.cancel()
