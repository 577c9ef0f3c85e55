"""Kills processes that a DAG file detached while it was read, because they would outlive the service.

A process that leaves its group (`setsid`) is not killed with the group. But the parser and its forks adopt orphans.
When a fork ends, its remaining descendants become children of the parser, which kills them.
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
    """Make this process the parent of descendants whose own parent ends.

    If the kernel refuses, as in some containers, detached descendants become children of process 1 and are not killed.

    Source: prctl(2), PR_SET_CHILD_SUBREAPER; in Linux from version 3.4, not inherited by a fork.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Orphan(NamedTuple):
    """A detached process that was killed. Once its `pidfd` can be read, the process has ended and must be reaped."""

    pid: int
    pidfd: int


class Orphans:
    """Kills the children that this process has not started itself.

    Args:
        selector: Each orphan's `pidfd` is registered here. When the selector returns the `pidfd`, call `reap` with the
            key's data.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._killed: dict[int, Orphan] = {}

    def kill(self, own: Collection[int]) -> None:
        """Kill all children except `own`. The children of a killed child then become children of this process."""
        for pid in _children() - self._killed.keys() - {*own}:
            # Nobody else reaps the child, so its process id cannot have been reused.
            os.kill(pid, signal.SIGKILL)
            orphan = self._killed[pid] = Orphan(pid, os.pidfd_open(pid))
            self._selector.register(orphan.pidfd, selectors.EVENT_READ, orphan)

    def reap(self, orphan: Orphan, own: Collection[int]) -> None:
        """Reap an orphan that has ended, and kill the children that it left."""
        self._selector.unregister(orphan.pidfd)
        os.close(orphan.pidfd)
        del self._killed[orphan.pid]
        os.waitpid(orphan.pid, 0)
        self.kill(own)

    def close(self, patience_s: float) -> None:
        """Wait until all orphans and their children have ended, but no longer than `patience_s`."""
        deadline = time.monotonic() + patience_s
        while self._killed and (left := deadline - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                if isinstance(key.data, Orphan):
                    self.reap(key.data, ())


def _children() -> set[int]:
    """Return the children of this process, which has a single thread; empty if the kernel does not list them."""
    pid = os.getpid()
    with suppress(OSError):
        return {
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        }
    return set()
