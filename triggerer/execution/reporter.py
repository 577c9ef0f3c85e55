"""What a worker tells its executor, from any of its threads."""

from __future__ import annotations

import threading
from typing import Any, Final

from triggerer.execution.protocol import RunReport, TaskStart, message
from triggerer.ipc import ChildChannel

START_IS_TOLD_AFTER_S: Final = 0.02
"""So soon after the order of a run the executor is told which task runs, and at once from then on."""


class Reporter:
    """Sends frames, one at a time.

    That a task has begun is held back for a moment: its result says so too, and the executor would be woken twice for
    one that ends at once.
    """

    def __init__(self, channel: ChildChannel) -> None:
        self._channel = channel
        self._sending = threading.Lock()
        self._holds_starts = False
        self._held: dict[str, Any] | None = None

    def send(self, content: dict[str, Any]) -> None:
        with self._sending:
            self._channel.send(content)

    def hold_starts(self) -> None:
        """Called before a run begins."""
        with self._sending:
            self._holds_starts, self._held = True, None

    def tell_starts(self) -> None:
        """Called once the moment is over."""
        with self._sending:
            self._holds_starts = False
            if self._held is not None:
                self._channel.send(self._held)
                self._held = None

    def started(self, run_pk: int, start: TaskStart) -> None:
        content = message("started", run=run_pk, start=start)
        with self._sending:
            if self._holds_starts:
                self._held = content
            else:
                self._channel.send(content)

    def report(self, run_pk: int, report: RunReport) -> None:
        with self._sending:
            # The task that has begun is among those that ended.
            self._held = None
            self._channel.send(message("results", run=run_pk, report=report))
