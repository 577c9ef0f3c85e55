"""Collects the outcomes of an attempt's tasks, one after the other."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

from triggerer.domain.attempts import TaskResult
from triggerer.domain.runs import TaskState
from triggerer.domain.tasks import Task
from triggerer.worker.tasks import Finished, skipped

logger = logging.getLogger("triggerer.run")


class TaskOutcomes:
    """The outcomes of one attempt.

    Attributes:
        values: The return values of successful tasks, by task id.
        failures: A text for each failed task, with the task's error.
        unreported: The results that have not been sent to the executor yet.
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.failures: list[str] = []
        self.unreported: list[TaskResult] = []
        self._skips: set[str] = set()

    def reuse(self, task: Task, state: TaskState) -> None:
        """Record a task that is not executed again, with its final state from an earlier attempt."""
        logger.info("task %s is left as it is: %s", task.task_id, state)
        if state is TaskState.SUCCESS:
            # No executed task needs the return value of this task.
            self.values[task.task_id] = None
        elif state is TaskState.SKIPPED:
            self._skips.add(task.task_id)
        else:
            self.failures.append(f"task {task.task_id} was left as it is: {state}")

    def leave_out_if_blocked(self, task: Task) -> bool:
        """If an upstream task failed or was skipped, record that this task is not executed, and return True."""
        missing = [before.task_id for before in task.upstream if before.task_id not in self.values]
        failed = [name for name in missing if name not in self._skips]
        if failed:
            logger.info("task %s is left out: %s failed", task.task_id, ", ".join(failed))
            now, why = datetime.now(UTC), f"upstream: {', '.join(failed)}"
            self.unreported.append(
                TaskResult(task.task_id, TaskState.UPSTREAM_FAILED, 0, None, now, why)
            )
        elif missing:
            logger.info(
                "task %s is skipped, because upstream was skipped: %s",
                task.task_id,
                ", ".join(missing),
            )
            self._skips.add(task.task_id)
            self.unreported.append(skipped(task, f"upstream was skipped: {', '.join(missing)}"))
        return bool(missing)

    def add(self, task: Task, finished: Finished) -> None:
        """Record the outcome of an executed task."""
        self.unreported.append(finished.result)
        if finished.result.state == TaskState.SUCCESS:
            self.values[task.task_id] = finished.value
        elif finished.result.state == TaskState.SKIPPED:
            self._skips.add(task.task_id)
        else:
            self.failures.append(f"task {task.task_id} failed: {finished.result.error}")
