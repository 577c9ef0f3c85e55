"""Starts, extends and ends the guard process, for the executor."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import ExitStack, suppress
from typing import Final, Self

import anyio

from triggerer.errors import ConfigurationError
from triggerer.executor.lease import lease_guard
from triggerer.processes.child_process import child_environment
from triggerer.processes.group_leader import GroupLeader

_START_S: Final = 10.0
_REAP_S: Final = 5.0


class LeaseGuard:
    """One guard process, from `start` to `aclose`. See `triggerer.executor.lease.lease_guard`.

    Attributes:
        lifeline: The reading end of a pipe. Only the guard has the writing end. Workers arm the
            reading end (`triggerer.processes.lifelines`): when the guard is gone, the kernel kills
            the workers.
    """

    def __init__(
        self, leader: GroupLeader, channel: socket.socket, lifeline: int, resources: ExitStack
    ) -> None:
        """Wrap a guard process that has started. Callers use `start`."""
        self.lifeline: Final = lifeline
        self._leader = leader
        self._channel = channel
        self._resources = resources
        self._has_ended = False

    @classmethod
    async def start(cls, ends_at: float) -> Self:
        """Start a guard that ends at this time of `CLOCK_BOOTTIME`, and wait until the guard has set its timer.

        Raises:
            ConfigurationError: This system has no suitable timer.
            OSError: The process cannot be started, ended at once, or did not answer within 10 s.
        """
        with ExitStack() as ours:
            with ExitStack() as theirs:
                # A socket of this type keeps the boundaries of messages.
                pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                channel = ours.enter_context(pair[0])
                inherited = theirs.enter_context(pair[1])
                channel.setblocking(False)
                lifeline, end = os.pipe()
                ours.callback(os.close, lifeline)
                # This process closes its writing end once the guard has started. Then only the guard has one.
                theirs.callback(os.close, end)
                os.set_blocking(lifeline, False)
                leader = GroupLeader(
                    [
                        *(sys.executable, "-I", "-S", lease_guard.__file__),
                        *(str(inherited.fileno()), repr(ends_at)),
                    ],
                    pass_fds=[inherited.fileno(), end],
                    env=child_environment(os.environ),
                )
            guard = cls(leader, channel, lifeline, ours.pop_all())
        try:
            await guard._await_armed()
        except BaseException:
            await guard.aclose()
            raise
        return guard

    async def _await_armed(self) -> None:
        said = b""
        with anyio.move_on_after(_START_S):
            await anyio.wait_readable(self._channel)
            said = self._channel.recv(lease_guard.LONGEST_MESSAGE)
        if said == lease_guard.ARMED:
            return
        if said:
            raise ConfigurationError(
                f"no process can be made to end with the executor's lease: {said.decode()}",
                hint="with PostgreSQL an executor needs Linux and a C library with POSIX timers, such as glibc or musl",
            )
        self._leader.kill()
        code = await self._leader.wait()
        raise ChildProcessError(
            f"the guard of the executor's lease was not ready within {_START_S:g} s, and ended with {code}"
        )

    @property
    def pid(self) -> int:
        return self._leader.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, as from `wait`. None: the guard has not ended."""
        return self._leader.returncode

    @property
    def has_ended(self) -> bool:
        """True once the guard is gone. By then the kernel has killed the workers that have the guard's lifeline."""
        if not self._has_ended:
            with suppress(BlockingIOError):
                self._has_ended = os.read(self.lifeline, 1) == b""
        return self._has_ended

    def extend(self, ends_at: float) -> None:
        """Move the guard's end to this later time."""
        # The message cannot be sent if the guard is gone, or if the guard does not read and the socket is full. A guard
        # that does not receive the message ends too early, and `wait` returns.
        with suppress(BrokenPipeError, ConnectionResetError, BlockingIOError):
            self._channel.send(repr(ends_at).encode())

    async def wait(self) -> int:
        """Wait until the guard has ended; return its exit code, or `-n` if signal `n` killed it."""
        return await self._leader.wait()

    async def aclose(self) -> None:
        """End the guard, and all workers that have its lifeline.

        Cancellation: The guard is ended nevertheless, within some seconds.
        """
        self._leader.kill()
        with anyio.move_on_after(_REAP_S, shield=True):
            await self._leader.wait()
        self._has_ended = True
        self._resources.close()
