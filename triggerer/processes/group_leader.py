"""Starts a process that leads its own process group, and ends it together with the group."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import anyio

STANDARD_ERROR: Final = 2


class GroupLeader:
    """A child process with its process group.

    Only this class reaps the process, directly after it has killed the group. asyncio would reap the process as soon as
    the process ends. Then the kernel could reuse the id, and a later kill could hit another group.

    Args:
        output: The child's standard output and standard error. The default is our standard error, so that the output
            of users' code does not mix with the output of our commands.
    Raises:
        OSError: The process cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        pass_fds: Collection[int],
        env: Mapping[str, str],
        output: int = STANDARD_ERROR,
    ) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=pass_fds,
            env=env,
            # In its own session, the child leads a process group, and Ctrl-C in our terminal does not reach the child.
            start_new_session=True,
        )
        self.pid: Final = self._process.pid
        try:
            self._descriptor = os.pidfd_open(self.pid)
        except OSError:
            self._reap()
            raise
        # anyio allows only one task at a time to wait for a descriptor.
        self._waiting = anyio.Lock()

    @property
    def returncode(self) -> int | None:
        """The exit code. Negative: the number of the signal that killed the process. None: `wait` has not returned."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait for the process to end, kill the rest of its group, and return the exit code."""
        async with self._waiting:
            if self._process.returncode is None:
                await anyio.wait_readable(self._descriptor)
                self._reap()
                os.close(self._descriptor)
        code = self._process.returncode
        assert code is not None
        return code

    def terminate(self) -> None:
        """Send SIGTERM to the process, not to its group. Does nothing if the process was reaped."""
        # Popen.terminate() would reap a process that has ended, and then its group could no longer be killed.
        if self._process.returncode is None:
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the group. Does nothing if the process was reaped. `wait` must still be called."""
        if self._process.returncode is None:
            os.killpg(self.pid, signal.SIGKILL)

    def _reap(self) -> None:
        self.kill()
        self._process.wait()
