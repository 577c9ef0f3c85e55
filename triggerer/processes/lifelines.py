"""Processes that the kernel kills when another one is gone.

It imports the standard library only: `triggerer_python_daemon` loads it where triggerer need not be installed.
"""

from __future__ import annotations

import fcntl
import os
import signal

_armed: list[int] = []


def die_with_writer(lifeline: int) -> None:
    """Have the kernel kill this process and its process group as soon as the process at a pipe's other end is gone.

    No code of ours has to run for it: users' code may hold the interpreter's lock at that time. A parent-death signal
    (prctl(2)) would kill this process alone, and not the processes that it has started.

    Args:
        lifeline: The reading end, opened by nobody else, of a pipe to which nobody writes, and whose other end only
            that process holds. This process has to be the leader of its group.
    """
    os.set_inheritable(lifeline, False)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    try:
        # The other end was closed before the signal was set up.
        if os.read(lifeline, 1) == b"":
            kill_own_group()
    except BlockingIOError:
        _armed.append(lifeline)


def open_again(path: str) -> int:
    """Return the reading end at a path below `/proc`, opened by nobody else.

    Raises:
        OSError: The process that has it is gone, or is another user's.
    """
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK)


def armed_lifelines() -> tuple[str, ...]:
    """Return the paths of the lifelines of this process, for others that are to die with the same processes.

    Those may be of another process group, to which no signal of ours comes.
    """
    return tuple(f"/proc/{os.getpid()}/fd/{lifeline}" for lifeline in _armed)


def kill_own_group() -> None:
    """Kill this process and its process group, which it leads."""
    os.killpg(os.getpgrp(), signal.SIGKILL)
