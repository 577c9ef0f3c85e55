"""A worker process as the executor sees it: started, talked to, killed, and nothing left of it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from triggerer.execution.protocol import message
from triggerer.group_leader import GroupLeader
from triggerer.ipc import CHANNEL_VARIABLE, Channel

_TAIL_BYTES: Final = 8000
_CHUNK_BYTES: Final = 65_536
_REAP_SECONDS: Final = 5.0


class WorkerGone(Exception):
    """The worker has died, or does not talk any more.

    Args:
        unread: It ended with frames that it had not read, of those that it was sent last.
    """

    def __init__(self, *, unread: bool) -> None:
        super().__init__("the worker is gone")
        self.unread: Final = unread


class WorkerProcess:
    """One live worker. Made by `open_worker`, whose end kills it.

    Attributes:
        tasks: Runs what has to end with the worker.
        gone: Set when the process has ended, and what it left in its group was killed.
        is_ready: Whether it was heard to take orders.
    """

    def __init__(
        self, process: GroupLeader, channel: Channel, output: int, tasks: TaskGroup
    ) -> None:
        """`output`: the reading end, that does not block, of the pipe that it prints to."""
        self.tasks: Final = tasks
        self.gone: Final = anyio.Event()
        self.is_ready = False
        self._process = process
        self._channel = channel
        self._pipe = output
        self._output = bytearray()
        self._output_ended = anyio.Event()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        """The end of what it wrote outside of runs, its JVM included."""
        return self._output.decode("utf-8", "replace").strip()

    async def send(self, content: dict[str, Any]) -> None:
        """Send a frame.

        Raises:
            WorkerGone: It cannot be reached.
        """
        try:
            await self._channel.send(content)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise WorkerGone(unread=True) from error

    async def receive(self) -> dict[str, Any]:
        """Wait for a frame.

        Raises:
            WorkerGone: None will come.
        Cancellation: A frame may be lost; nothing is to be received afterwards.
        """
        try:
            frame: dict[str, Any] = await self._channel.receive()
        except (
            anyio.EndOfStream,
            anyio.IncompleteRead,
            anyio.BrokenResourceError,
            anyio.ClosedResourceError,
        ) as error:
            # Linux tells a socket whose peer closed with data left to read apart from one that has read it all.
            # Where that is not told, the frames count as read.
            raise WorkerGone(unread=isinstance(error.__cause__, ConnectionResetError)) from error
        self.is_ready |= frame["type"] == "ready"
        return frame

    async def ready(self) -> None:
        """Wait until it takes orders; before it was given the first one only.

        Raises, Cancellation: As `receive`.
        """
        while not self.is_ready:
            await self.receive()

    def terminate(self) -> None:
        """Ask it to unwind what it executes and end."""
        # To the process alone: it stops its Spark work itself, which takes a living JVM.
        self._process.terminate()

    def kill(self) -> None:
        """End it and all that it has started, its JVM first of all; nothing if it is gone already."""
        self._process.kill()

    async def reap(self) -> int:
        """Make sure that it is dead, with all of its output read; return its exit code.

        A process that closed its channel has a second to end by itself, so that its own exit code
        is told rather than our signal.

        Returns:
            Negative: the number of the signal that killed it.
        """
        with anyio.move_on_after(1):
            await self.gone.wait()
        self.kill()
        with anyio.move_on_after(_REAP_SECONDS, shield=True):
            await self.gone.wait()
            await self._output_ended.wait()
        return -signal.SIGKILL if self._process.returncode is None else self._process.returncode

    async def watch(self) -> None:
        """Notice its end, also when a child of its holds the channel open."""
        await self._process.wait()
        self.gone.set()
        # What it sent before it died is read first; then nobody waits for more, even if something
        # that left the group still holds the other end.
        await anyio.sleep(1)
        await self._channel.aclose()

    async def drain(self) -> None:
        """Read its output, so that it never blocks on it; keep the end."""
        while True:
            await anyio.wait_readable(self._pipe)
            try:
                chunk = os.read(self._pipe, _CHUNK_BYTES)
            except BlockingIOError:
                continue
            if not chunk:
                break
            self._output += chunk
            del self._output[:-_TAIL_BYTES]
        self._output_ended.set()


@asynccontextmanager
async def open_worker(setup: Mapping[str, Any]) -> AsyncIterator[WorkerProcess]:
    """Start a worker; when the block ends it is dead, with its JVM and whatever else it started.

    Args:
        setup: What `triggerer.execution.worker` wants to know, save for `lifeline`.
    """
    async with AsyncExitStack() as stack:
        # The child's ends: closed here once it has them.
        with ExitStack() as handed:
            channel, theirs = await Channel.open()
            stack.push_async_callback(_close, channel)
            handed.enter_context(theirs)
            # Closed by the kernel when this process dies, however it dies.
            lifeline, ours = os.pipe()
            stack.callback(os.close, ours)
            handed.callback(os.close, lifeline)
            output, printed = os.pipe()
            stack.callback(os.close, output)
            handed.callback(os.close, printed)
            os.set_blocking(output, False)
            process = GroupLeader(
                # -P: the folder that the service was started in is no place to import from.
                [sys.executable, "-P", "-m", "triggerer.execution.worker"],
                pass_fds=[theirs.fileno(), lifeline],
                env={**os.environ, CHANNEL_VARIABLE: str(theirs.fileno())},
                output=printed,
            )
        stack.push_async_callback(_reap, process)
        async with anyio.create_task_group() as tasks:
            worker = WorkerProcess(process, channel, output, tasks)
            tasks.start_soon(worker.watch)
            tasks.start_soon(worker.drain)
            try:
                with suppress(WorkerGone):
                    # One that is dead already is found out by whoever receives from it.
                    await worker.send({**setup, **message("setup", lifeline=lifeline)})
                yield worker
            finally:
                worker.kill()
                tasks.cancel_scope.cancel()


async def _reap(process: GroupLeader) -> None:
    with anyio.move_on_after(_REAP_SECONDS, shield=True):
        await process.wait()


async def _close(channel: Channel) -> None:
    with anyio.move_on_after(1, shield=True):
        await channel.aclose()
