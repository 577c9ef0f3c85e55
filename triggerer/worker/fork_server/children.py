"""The fork server's view of its children: their state, and their end with all that they leave behind."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto

from triggerer.worker.fork_server.control import Control


class Role(Enum):
    """The task of a child."""

    NEXT = auto()
    """It waits for an order."""
    RUN = auto()
    """It executes one."""
    OPENER = auto()
    """It opens a driver."""


@dataclass(slots=True, eq=False)
class Child:
    """A child that is not reaped yet."""

    number: int
    pid: int
    control: Control
    role: Role
    has_gone: bool = False
    """True once the child may use what it shares with the former run's process."""
    driver_pid: int | None = None
    """The JVM that the child was told to attach to."""
    is_attached: bool = False
    is_leaving: bool = False
    """True once the child was asked to end, unless it has an order."""
    log: int | None = None
    """The run's log."""
    folders: list[str] = field(default_factory=list)
    """Folders that are removed after it."""
    is_reaped: bool = False
    """True: others may have the number of the process now."""

    def signal(self, number: int) -> None:
        """Send a signal to the process alone."""
        if not self.is_reaped:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process and its group, which a run's process leads."""
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
