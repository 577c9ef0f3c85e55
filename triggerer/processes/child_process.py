"""Starts and supervises the service's child processes, and ends each of them with its descendants."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from typing import Final, Self

import anyio

from triggerer.processes.group_leader import STANDARD_ERROR, GroupLeader
from triggerer.processes.ipc import CHANNEL_VARIABLE, LIFELINE_VARIABLE, Channel

_OUTPUT_LIMIT: Final = 8000
"""The number of bytes to keep from the end of a child's output."""
_CHUNK_BYTES: Final = 65_536
_REAP_S: Final = 5.0
_SETTING: Final = "TRIGGERER__"
_CONNECTION: Final = "TRIGGERER__CONNECTIONS__"
_withheld: set[str] = set()


def withhold_from_children(variables: Iterable[str]) -> None:
    """Remove these variables from the environment of all children that start from now on, see `child_environment`."""
    _withheld.update(variables)


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a child that executes users' code, without the settings that only the service needs.

    For example, the database's URL with its password is left out. The variables of connections are kept, because
    triggers and tasks read them.
    """
    return {
        name: value
        for name, value in environ.items()
        if name not in _withheld and (not name.startswith(_SETTING) or name.startswith(_CONNECTION))
    }


class ChildProcess:
    """One `python -m <module>`, from `start` to `aclose`.

    The child leads its own process group, which is killed as a whole. If the parent dies in any way, the kernel kills
    the group. The module that the child runs must first call `triggerer.processes.ipc.connect_to_parent`.

    Attributes:
        channel: The channel to the child.
        gone: Set by `supervise` when the process has ended and the rest of its group has been killed.
    """

    def __init__(
        self, leader: GroupLeader, channel: Channel, output: int | None, resources: AsyncExitStack
    ) -> None:
        """Wrap a process that has started. Callers use `start`.

        Args:
            output: The non-blocking reading end of the pipe that the child writes to. None: no output is captured.
        """
        self.channel: Final = channel
        self.gone: Final = anyio.Event()
        self._leader = leader
        self._pipe = output
        self._output = bytearray()
        self._output_ended = anyio.Event()
        self._resources = resources

    @classmethod
    async def start(
        cls,
        module: str,
        *,
        captures_output: bool = False,
        lifelines: Sequence[int] = (),
        inherits: Sequence[int] = (),
    ) -> Self:
        """Start `python -m <module>`.

        Args:
            lifelines: Reading ends of pipes. When all writers of one of these pipes have ended, the group is killed.
            captures_output: True: store the end of the child's output in `output`. False: the child writes to the
                standard error of this process.
            inherits: Further descriptors that the child inherits. They have the same numbers in the child.
        Raises:
            OSError: The process cannot be started.
        """
        async with AsyncExitStack() as ours:
            # `theirs` closes the child's ends in this process, once the child has inherited them.
            with ExitStack() as theirs:
                channel, socket = await Channel.open()
                ours.push_async_callback(channel.aclose)
                theirs.enter_context(socket)
                # The lifeline is a pipe without data, and only this process has its writing end. When this process
                # dies, the pipe closes, and the kernel kills the child's process group.
                lifeline, end = os.pipe()
                ours.callback(os.close, end)
                theirs.callback(os.close, lifeline)
                output = None
                writes_to = STANDARD_ERROR
                if captures_output:
                    output, writes_to = os.pipe()
                    ours.callback(os.close, output)
                    theirs.callback(os.close, writes_to)
                    os.set_blocking(output, False)
                leader = GroupLeader(
                    # With -P, Python imports nothing from the service's working directory.
                    [sys.executable, "-P", "-m", module],
                    pass_fds=[socket.fileno(), lifeline, *lifelines, *inherits],
                    env={
                        **child_environment(os.environ),
                        CHANNEL_VARIABLE: str(socket.fileno()),
                        LIFELINE_VARIABLE: ",".join(map(str, (lifeline, *lifelines))),
                    },
                    output=writes_to,
                )
            return cls(leader, channel, output, ours.pop_all())

    @property
    def pid(self) -> int:
        return self._leader.pid

    @property
    def returncode(self) -> int | None:
        """The exit code. Negative: the number of the signal that killed the process. None: `wait` has not returned."""
        return self._leader.returncode

    @property
    def output(self) -> str:
        """The end of the output of the process and its children, if it is captured."""
        return self._output.decode("utf-8", "replace").strip()

    async def supervise(self) -> None:
        """Read the output, and wait for the end of the process. Run this from `start` until just before `aclose`.

        After the end of the process, `channel.receive` returns only frames that were already sent. This holds even if a
        descendant outside the group still has the other end of the channel.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._read_output)
            await self._leader.wait()
            self.gone.set()
            self.channel.shut_down()

    async def _read_output(self) -> None:
        while self._pipe is not None:
            await anyio.wait_readable(self._pipe)
            try:
                chunk = os.read(self._pipe, _CHUNK_BYTES)
            except BlockingIOError:
                continue
            if not chunk:
                break
            self._output += chunk
            del self._output[:-_OUTPUT_LIMIT]
        self._output_ended.set()

    def terminate(self) -> None:
        """Send SIGTERM to the process, not to its group. Does nothing if the process is gone."""
        self._leader.terminate()

    def kill(self) -> None:
        """Kill the process group. Does nothing if the process is gone."""
        self._leader.kill()

    async def wait(self) -> int:
        """Wait for the process to end, and kill the rest of its group.

        Returns:
            The exit code. Negative: the number of the signal that killed the process.
        """
        return await self._leader.wait()

    async def reap(self) -> int:
        """Wait for the end of the process and of its output. After one second, kill the process.

        `supervise` must be running.

        Returns:
            The exit code. Negative: the number of the signal that killed the process.
        """
        with anyio.move_on_after(1):
            await self.gone.wait()
        self.kill()
        with anyio.move_on_after(_REAP_S, shield=True):
            await self.gone.wait()
            await self._output_ended.wait()
        return -signal.SIGKILL if self.returncode is None else self.returncode

    async def aclose(self, grace_s: float = 0.0) -> None:
        """Wait `grace_s` for the end of the process, kill its group, and release everything that `start` has opened.

        Cancellation: The group is ended nevertheless, within `grace_s` and some seconds.
        """
        if grace_s > 0:
            with anyio.move_on_after(grace_s, shield=True):
                await self.wait()
        self.kill()
        with anyio.move_on_after(_REAP_S, shield=True):
            await self.wait()
        with anyio.move_on_after(1, shield=True):
            await self._resources.aclose()
