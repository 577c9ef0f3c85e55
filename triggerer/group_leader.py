"""A process that leads a group of its own, and the end of both."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import anyio

STANDARD_ERROR: Final = 2


class GroupLeader:
    """A child, and with it what it starts, ended by a number that is theirs as long as it is used.

    The kernel gives a number to nobody else before its process is reaped and its group is empty. asyncio reaps a
    process as soon as it has ended, though it may be long until somebody kills the group; so this one is reaped
    here alone, just after its group was killed.

    Args:
        output: The descriptor that it writes its standard output and its errors to. What users' code prints is no
            output of ours.
    Raises:
        OSError: No process can be had.
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
            # A group of its own: it is killed as a whole, and Ctrl-C in the terminal is ours.
            start_new_session=True,
        )
        self.pid: Final = self._process.pid
        try:
            self._descriptor = os.pidfd_open(self.pid)
        except OSError:
            self._reap()
            raise
        # A descriptor is waited for by one task at a time.
        self._waiting = anyio.Lock()

    @property
    def returncode(self) -> int | None:
        """None: it has not ended, or nobody has waited for that. Negative: the number of a signal."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait until it has ended, and end what it has left in its group; return its exit code."""
        async with self._waiting:
            if self._process.returncode is None:
                await anyio.wait_readable(self._descriptor)
                self._reap()
                os.close(self._descriptor)
        code = self._process.returncode
        assert code is not None
        return code

    def terminate(self) -> None:
        """Send it SIGTERM, and nobody else in its group; nothing if it was reaped."""
        # Not Popen's own: that reaps what has ended, and the group would keep its number no longer.
        if self._process.returncode is None:
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End its group; nothing if it was reaped. It is still to be waited for."""
        if self._process.returncode is None:
            os.killpg(self.pid, signal.SIGKILL)

    def _reap(self) -> None:
        self.kill()
        self._process.wait()
