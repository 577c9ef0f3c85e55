"""Describes how the process of a run died, for the error of the run."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from triggerer.processes.signals import signal_name


@dataclass(frozen=True, slots=True)
class Death:
    """The death of a process that had an order (a run, or callbacks), and did not report the end of its work."""

    code: int
    """The exit code. Negative: the number of the signal that killed the process."""
    is_of_worker: bool = False
    """True: the worker died, and its processes with it. `code` is the exit code of the worker."""

    @property
    def victim(self) -> str:
        return "worker" if self.is_of_worker else "process"

    def reason(self, *, has_begun: bool, malformed: str | None = None) -> str:
        """Return the error of the run.

        Args:
            has_begun: True if the process had accepted the run.
            malformed: If the executor killed the process because of malformed data in its channel: why the data is
                malformed.
        """
        if malformed is not None:
            return (
                "the run's process was killed, because the data in its channel to the executor cannot be understood"
                f" ({malformed}): the run's code must not write into this channel"
            )
        victim = "the worker" if self.is_of_worker else "the run's process"
        when = "in the middle of the run" if has_begun else "before it took the run"
        if self.code >= 0:
            return f"{victim} exited with code {self.code} {when}"
        told = f"{victim} was killed by {signal_name(-self.code)} {when}"
        return told + (", as happens when memory runs out" if -self.code == signal.SIGKILL else "")
