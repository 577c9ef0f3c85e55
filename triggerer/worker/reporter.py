"""Sends the reports of a run's process to the executor, from any thread of the process."""

from __future__ import annotations

import threading
from typing import Any

from triggerer.domain.attempts import RunProgress
from triggerer.domain.launches import Launch
from triggerer.processes.ipc import ChildChannel
from triggerer.worker.protocol import RunReport, TaskStart, message


class Reporter:
    """Sends frames to the executor. Threads that send at the same moment take turns."""

    def __init__(self, channel: ChildChannel) -> None:
        self._channel = channel
        self._sending = threading.Lock()

    def send(self, content: dict[str, Any]) -> None:
        with self._sending:
            self._channel.send(content)

    def started(self, run_pk: int, start: TaskStart) -> None:
        self.send(message("started", run=run_pk, start=start))

    def launch(self, run_pk: int, launch: Launch) -> None:
        self.send(message("launch", run=run_pk, launch=launch))

    def progress(self, run_pk: int, progress: RunProgress) -> None:
        self.send(message("progress", run=run_pk, progress=progress))

    def report(self, run_pk: int, report: RunReport) -> None:
        self.send(message("results", run=run_pk, report=report))
