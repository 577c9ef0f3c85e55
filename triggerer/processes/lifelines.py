"""Lets the kernel kill a process group when another process ends.

A *lifeline* is a pipe without data. One process has its only writing end. A second process *arms* its reading end.
When the first process is gone, the kernel sends SIGKILL to the second process's group.

This module imports only the standard library: `triggerer_python_daemon` loads it on machines without triggerer.
"""

from __future__ import annotations

import fcntl
import os
import signal

_armed: list[int] = []
_armed_by = 0


def die_with_writer(lifeline: int) -> None:
    """Make the kernel kill this process and its process group when the process at a pipe's other end is gone.

    This process must lead its process group. The kill works even while users' code holds the interpreter's lock. A
    parent-death signal (prctl(2)) would kill only this process, and not its descendants.

    Args:
        lifeline: The reading end of a pipe. Only this process may have the open file description of the reading end.
            Only the process at the other end may have the writing end. Nothing is written into the pipe.
    """
    global _armed_by  # noqa: PLW0603
    os.set_inheritable(lifeline, False)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    try:
        # An end of file means that the other end was closed before the signal was set up.
        if os.read(lifeline, 1) == b"":
            kill_own_group()
    except BlockingIOError:
        _armed.append(lifeline)
        _armed_by = os.getpid()


def open_again(path: str) -> int:
    """Return a new descriptor for the reading end of a lifeline, given its path below `/proc`.

    Raises:
        OSError: The process with the descriptor is gone, or belongs to another user.
    """
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK)


def arm_again() -> None:
    """Arm the inherited lifelines again, in a forked process that leads its own process group now."""
    inherited = _armed.copy()
    _armed.clear()
    for lifeline in inherited:
        # An open file description has one owner, which gets the signal (F_SETOWN in fcntl(2)). The inherited
        # description also serves the parent, so its owner must stay. Opening the pipe again creates a new description.
        die_with_writer(open_again(f"/proc/self/fd/{lifeline}"))
        os.close(lifeline)


def armed_lifelines() -> tuple[str, ...]:
    """Return the paths of this process's lifelines, for a process of another group that must die with this process.

    A lifeline kills only the process group that armed it, so the other process must arm the
    lifelines too. In a forked process, the paths lead to the parent's descriptors until `arm_again`
    is called.
    """
    return tuple(f"/proc/{_armed_by}/fd/{lifeline}" for lifeline in _armed)


def kill_own_group() -> None:
    """Kill this process and its process group, which it leads."""
    os.killpg(os.getpgrp(), signal.SIGKILL)
