"""Ends processes that a DAG file has detached while it was read: they would outlive the service.

A process that leaves its group (`setsid`) is not killed with it, and one whose parent has ended (a double fork) becomes
a child of process 1, unless a process above it has asked the kernel for such children. The parser and its forks do:
while a fork runs they are the fork's, and as soon as it has ended they are the parser's.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

_PR_SET_CHILD_SUBREAPER: Final = 36


def adopt_orphans() -> None:
    """Have the kernel make processes below this one its children when their own parent ends.

    Where it does not (the call may be forbidden to a container), they are process 1's, and are left alone.

    Source: prctl(2), PR_SET_CHILD_SUBREAPER; since Linux 3.4, not inherited by a fork.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Orphan(NamedTuple):
    """A process that was killed, and is to be reaped when its descriptor can be read."""

    pid: int
    pidfd: int


class Orphans:
    """Kills the children of this process that it has not started itself.

    Args:
        selector: Tells when one of them has ended: the data of its key is an `Orphan`, for `reap`.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._killed: dict[int, Orphan] = {}

    def kill(self, own: Collection[int]) -> None:
        """Kill all but `own`. What these have started are children as well, as soon as these have ended."""
        for pid in _children() - self._killed.keys() - {*own}:
            # Nobody else reaps it: the number is still its own.
            os.kill(pid, signal.SIGKILL)
            orphan = self._killed[pid] = Orphan(pid, os.pidfd_open(pid))
            self._selector.register(orphan.pidfd, selectors.EVENT_READ, orphan)

    def reap(self, orphan: Orphan, own: Collection[int]) -> None:
        """Reap one that has ended, and kill what it has left."""
        self._selector.unregister(orphan.pidfd)
        os.close(orphan.pidfd)
        del self._killed[orphan.pid]
        os.waitpid(orphan.pid, 0)
        self.kill(own)

    def close(self, patience_s: float) -> None:
        """Wait until all have ended, and what they have left; but not for one that the kernel cannot end just now."""
        deadline = time.monotonic() + patience_s
        while self._killed and (left := deadline - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                if isinstance(key.data, Orphan):
                    self.reap(key.data, ())


def _children() -> set[int]:
    """Return the processes whose parent is this one; it has a single thread. None where the kernel does not tell."""
    pid = os.getpid()
    with suppress(OSError):
        return {
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        }
    return set()
