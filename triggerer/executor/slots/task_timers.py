"""Sets timers for running tasks, and measures the time until a run's first task begins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from triggerer.domain.attempts import RunOrder, TaskResult
from triggerer.domain.runs import TaskState
from triggerer.executor.result_writer import ResultWriter
from triggerer.observability.metrics.table import RUN_QUEUE
from triggerer.store.runs.results import AttemptUpdate
from triggerer.worker.protocol import TaskStart

_SHOWN_AS_RUNNING_AFTER_S: Final = 0.5
"""A task that still runs after this time is stored as running. A shorter task is stored only once, at its end."""


@dataclass(slots=True)
class TaskTimers:
    """Stores which tasks of a run are running, and reports tasks that outlive their timeouts.

    Args:
        grace: The time that a task may run after its timeout.
        on_overdue: Called on the event loop with the reason, when a task has run for its timeout plus `grace`.
    """

    result_writer: ResultWriter
    order: RunOrder
    grace: timedelta
    on_overdue: Callable[[str], None]
    _due: dict[str, list[asyncio.TimerHandle]] = field(default_factory=dict)
    _is_counted: bool = False
    """True once the run's first task has begun."""

    def follow(self, start: TaskStart) -> None:
        """Start the timers of this try of a task."""
        self.stop(start.task_id)
        self._observe_queue_time(start)
        call_later = asyncio.get_running_loop().call_later
        due = self._due.setdefault(start.task_id, [])
        due.append(call_later(_SHOWN_AS_RUNNING_AFTER_S, self._show, start))
        if start.timeout_s is not None:
            grace_s = self.grace.total_seconds()
            reason = (
                f"task {start.task_id} did not stop within {grace_s:g} s after its timeout of"
                f" {start.timeout_s:g} s; its process was killed"
            )
            due.append(call_later(start.timeout_s + grace_s, self.on_overdue, reason))

    def stop(self, *task_ids: str) -> None:
        """Stop the timers of these tasks. Without ids: stop all timers."""
        for task_id in task_ids or tuple(self._due):
            for timer in self._due.pop(task_id, ()):
                timer.cancel()

    def _observe_queue_time(self, start: TaskStart) -> None:
        """For the metrics, record how long the run waited for its first task. Ignore attempts after the first one."""
        if self.order.attempt == 1 and not self._is_counted:
            self._is_counted = True
            RUN_QUEUE.observe(max((start.started_at - self.order.queued_at).total_seconds(), 0.0))

    def _show(self, start: TaskStart) -> None:
        task = TaskResult(
            start.task_id, TaskState.RUNNING, start.try_number, start.started_at, ended_at=None
        )
        self.result_writer.submit_nowait(AttemptUpdate(self.order, (task,)))
