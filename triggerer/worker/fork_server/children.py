"""The fork server's view of its child processes: their state, and how they are killed. `server.py` forks them."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto

from triggerer.worker.fork_server.control import Control


class Role(Enum):
    """The purpose of a child process."""

    NEXT = auto()
    """The child waits for its order: a run to execute, or callbacks to call."""
    RUN = auto()
    """The child executes a run, or calls callbacks."""
    OPENER = auto()
    """The child opens a Spark driver, and then ends."""


@dataclass(slots=True, eq=False)
class Child:
    """A child process of the fork server."""

    number: int
    pid: int
    control: Control
    role: Role
    may_begin: bool = False
    """True once the server has sent `go` to the child: all processes of the former run are gone."""
    driver_pid: int | None = None
    """The process id of the JVM to which the child must attach."""
    is_attached: bool = False
    is_leaving: bool = False
    """True once the server has asked the child to end. A child that already has an order ignores the request."""
    log: int | None = None
    """The descriptor of the run's log; None: the child has no order yet."""
    folders: list[str] = field(default_factory=list)
    """The folders to remove after the child has ended."""
    is_reaped: bool = False
    """True once the process was reaped: its id may belong to another process now."""

    def signal(self, number: int) -> None:
        """Send a signal to the process, and not to its group."""
        if not self.is_reaped:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process. A run's process leads a group, which is killed too."""
        if self.is_reaped:
            return
        os.kill(self.pid, signal.SIGKILL)
        if self.role is not Role.OPENER:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        self.control.close()
        self.close_log()

    def close_log(self) -> None:
        if self.log is not None:
            os.close(self.log)
            self.log = None
