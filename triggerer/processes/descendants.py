"""Finds and ends all descendants of a process, even if they have left its process group.

A process that has called `adopt_orphans` becomes the parent of each descendant whose own parent ends. So no descendant
escapes, not even a daemon that has forked twice or has its own session.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

_PR_SET_CHILD_SUBREAPER: Final = 36
_LOOK_EVERY_S: Final = 0.001


def adopt_orphans() -> None:
    """Let this process, instead of process 1 of the system, become the parent of each descendant whose parent ends.

    Raises:
        OSError: The system has no such call.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "this process cannot adopt orphans")


def children_of(pid: int) -> list[int]:
    """Return the children of a process, living or not yet reaped; empty if the process is gone."""
    try:
        # The kernel lists the children by the thread that has forked them.
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []
    found: list[int] = []
    for thread in threads:
        try:
            found += map(int, (thread / "children").read_text().split())
        except FileNotFoundError:
            if thread.exists():
                # This kernel has no list of children. Read the parent of every process instead.
                return _children_by_parent(pid)
        except OSError:
            # The thread has just ended.
            continue
    return found


def _children_by_parent(pid: int) -> list[int]:
    with suppress(psutil.NoSuchProcess):
        return [child.pid for child in psutil.Process(pid).children()]
    return []


def end_children(
    to_spare: Callable[[], Collection[int]], *, reap: Callable[[], None], within_s: float
) -> list[int]:
    """Kill this process's children except `to_spare`, and all descendants of the killed children.

    When a child dies, this process adopts the child's own children, and kills them in the next round.

    Args:
        to_spare: Returns the ids of the children to spare. Called in every round.
        reap: Reaps the children that have ended, without blocking.
    Returns:
        The children that are still there after `within_s`, for instance because a file system hangs.
    """
    deadline = time.monotonic() + within_s
    while True:
        reap()
        left = [pid for pid in children_of(os.getpid()) if pid not in to_spare()]
        if not left or time.monotonic() > deadline:
            return left
        for pid in left:
            kill(pid)
        time.sleep(_LOOK_EVERY_S)


def kill(pid: int) -> None:
    """Send SIGKILL to a process that may be gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
