"""The fork server's view of its child processes: their state, and how they are killed. `server.py` forks them."""

from __future__ import annotations

import logging
import os
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto

from triggerer.worker.fork_server.control import Control
from triggerer.worker.logs.limit import LogLimit

logger = logging.getLogger(__name__)


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
    """True once all processes of the previous run are gone, and the server has sent `go` to the child."""
    driver_pid: int | None = None
    """The process id of the JVM to which the child must attach."""
    is_attached: bool = False
    is_leaving: bool = False
    """True once the server has asked the child to end. A child that already has an order ignores the request."""
    log: int | None = None
    """The descriptor of the run's log; None: the child has no order yet."""
    log_limit: LogLimit | None = None
    """Limits the size of the log. None: there is no log, or its size cannot be limited."""
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

    def take_log(self, log: int, max_bytes: int) -> None:
        """Become the owner of a descriptor of the run's log, which `limit_log` needs."""
        self.log = log
        self.log_limit = LogLimit(log, max_bytes)

    def limit_log(self) -> None:
        """Free the middle of the log if the log is too long. After a failure, the log is no longer limited."""
        if self.log_limit is None:
            return
        try:
            self.log_limit.enforce()
        except OSError as error:
            logger.warning("the size of a run's log cannot be limited: %s", error)
            self.log_limit = None

    def close(self) -> None:
        self.control.close()
        self.close_log()

    def close_log(self) -> None:
        if self.log is not None:
            os.close(self.log)
            self.log = self.log_limit = None
