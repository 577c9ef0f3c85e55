"""The service's child processes: started, supervised, and ended together with all that they started."""

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
"""How much of the end of a child's output is kept."""
_CHUNK_BYTES: Final = 65_536
_REAP_S: Final = 5.0
_SETTING: Final = "TRIGGERER__"
_CONNECTION: Final = "TRIGGERER__CONNECTIONS__"
_withheld: set[str] = set()


def withhold_from_children(variables: Iterable[str]) -> None:
    """Keep these environment variables, too, from all children that are started from now on."""
    _withheld.update(variables)


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child, in which users' code runs: without the settings that only the service needs.

    The database's URL with its password is one of them. Connections stay: triggers and tasks ask for them.
    """
    return {
        name: value
        for name, value in environ.items()
        if name not in _withheld and (not name.startswith(_SETTING) or name.startswith(_CONNECTION))
    }


class ChildProcess:
    """One `python -m <module>`, from `start` to `aclose`.

    It leads a process group of its own, which is killed as a whole. The module calls
    `triggerer.processes.ipc.connect_to_parent` first.
    The kernel then kills the group when this process dies, however it dies.

    Attributes:
        channel: To the child.
        gone: Set by `supervise` when the process has ended and what was left of its group has been killed.
    """

    def __init__(
        self, leader: GroupLeader, channel: Channel, output: int | None, resources: AsyncExitStack
    ) -> None:
        """See `start`. `output`: the reading end, which does not block, of the pipe that it writes to."""
        self.channel: Final = channel
        self.gone: Final = anyio.Event()
        self._leader = leader
        self._pipe = output
        self._output = bytearray()
        self._output_ended = anyio.Event()
        self._resources = resources

    @classmethod
    async def start(
        cls, module: str, *, captures_output: bool = False, lifelines: Sequence[int] = ()
    ) -> Self:
        """Start `python -m <module>`.

        Args:
            lifelines: The reading ends of pipes: its group is also killed when the last writer of one of them is gone.
            captures_output: Keep the end of what it writes to its standard streams as `output`, instead of passing
                it on to our standard error.
        Raises:
            OSError: The process cannot be started.
        """
        async with AsyncExitStack() as ours:
            # The child's ends: closed here once it has them.
            with ExitStack() as theirs:
                channel, socket = await Channel.open()
                ours.push_async_callback(channel.aclose)
                theirs.enter_context(socket)
                # Nothing is ever written to it. The kernel closes our end when this process dies.
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
                    # -P: the folder that the service was started in is no place to import from.
                    [sys.executable, "-P", "-m", module],
                    pass_fds=[socket.fileno(), lifeline, *lifelines],
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
        """None: it has not ended, or nobody has waited for that. Negative: the number of the signal that killed it."""
        return self._leader.returncode

    @property
    def output(self) -> str:
        """The end of what it and its children wrote, if that is captured."""
        return self._output.decode("utf-8", "replace").strip()

    async def supervise(self) -> None:
        """Read its output and notice its end; to run from `start` until just before `aclose`.

        After its end, nobody waits for more frames than it has sent, even if a process that has left the group still
        holds the other end of the channel.
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
        """Send SIGTERM to it, not to its group; does nothing if it is gone."""
        self._leader.terminate()

    def kill(self) -> None:
        """Kill its group; does nothing if it is gone."""
        self._leader.kill()

    async def wait(self) -> int:
        """Wait until it has ended, and kill what is left of its group.

        Returns:
            Its exit code. Negative: the number of the signal that killed it.
        """
        return await self._leader.wait()

    async def reap(self) -> int:
        """Make sure that it is dead and that all of its output has been read; while `supervise` runs.

        A process that closed its channel has a second to end by itself, so that its own exit code is returned rather
        than our signal.

        Returns:
            As `wait`.
        """
        with anyio.move_on_after(1):
            await self.gone.wait()
        self.kill()
        with anyio.move_on_after(_REAP_S, shield=True):
            await self.gone.wait()
            await self._output_ended.wait()
        return -signal.SIGKILL if self.returncode is None else self.returncode

    async def aclose(self, grace_s: float = 0.0) -> None:
        """Kill its group unless it ends within `grace_s`, and release what `start` has opened.

        Cancellation: It is completed all the same, within `grace_s` and some seconds.
        """
        if grace_s > 0:
            with anyio.move_on_after(grace_s, shield=True):
                await self.wait()
        self.kill()
        with anyio.move_on_after(_REAP_S, shield=True):
            await self.wait()
        with anyio.move_on_after(1, shield=True):
            await self._resources.aclose()
