"""A process that leads a process group of its own, and how both are ended."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import anyio

STANDARD_ERROR: Final = 2


class GroupLeader:
    """A child process with its process group, which is never killed by a number that belongs to others by now.

    The kernel does not reuse a process id before the process has been reaped and its group is empty. asyncio reaps a
    process as soon as it has ended, while its group may have to be killed much later. So this class alone reaps the
    process, right after it has killed the group.

    Args:
        output: The descriptor for its standard output and standard error. The default keeps what users' code prints
            out of our standard output.
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
            # A group of its own: killed as a whole, and not interrupted by Ctrl-C in our terminal.
            start_new_session=True,
        )
        self.pid: Final = self._process.pid
        try:
            self._descriptor = os.pidfd_open(self.pid)
        except OSError:
            self._reap()
            raise
        # Only one task at a time may wait for a descriptor.
        self._waiting = anyio.Lock()

    @property
    def returncode(self) -> int | None:
        """None: it has not ended, or nobody has called `wait`. Negative: the number of the signal that killed it."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait until it has ended, kill what is left of its group, and return its exit code."""
        async with self._waiting:
            if self._process.returncode is None:
                await anyio.wait_readable(self._descriptor)
                self._reap()
                os.close(self._descriptor)
        code = self._process.returncode
        assert code is not None
        return code

    def terminate(self) -> None:
        """Send SIGTERM to it, not to its group; does nothing if it was reaped."""
        # Not Popen.terminate(): that reaps a process that has ended, whose group could then not be killed any more.
        if self._process.returncode is None:
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill its group; does nothing if it was reaped. `wait` still has to be called."""
        if self._process.returncode is None:
            os.killpg(self.pid, signal.SIGKILL)

    def _reap(self) -> None:
        self.kill()
        self._process.wait()
