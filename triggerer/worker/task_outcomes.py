"""What becomes of the tasks of an attempt, one after the other."""

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
    """Those of one attempt.

    Attributes:
        values: By task id what those have returned that have succeeded.
        failures: A sentence for each task that has failed.
        unreported: The results that the executor was not told yet.
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.failures: list[str] = []
        self.unreported: list[TaskResult] = []
        self._skips: set[str] = set()

    def keep(self, task: Task, state: TaskState) -> None:
        """Leave a task as an attempt before has left it."""
        logger.info("task %s is left as it is: %s", task.task_id, state)
        if state is TaskState.SUCCESS:
            # Nobody needs what it has returned.
            self.values[task.task_id] = None
        elif state is TaskState.SKIPPED:
            self._skips.add(task.task_id)
        else:
            self.failures.append(f"task {task.task_id} was left as it is: {state}")

    def leave_out(self, task: Task) -> bool:
        """Whether a task is not executed, since something that it waits for has failed or was skipped; note that."""
        missing = [before.task_id for before in task.upstream if before.task_id not in self.values]
        failed = [name for name in missing if name not in self._skips]
        if failed:
            logger.info("task %s is left out: %s failed", task.task_id, ", ".join(failed))
            now, why = datetime.now(UTC), f"upstream: {', '.join(failed)}"
            self.unreported.append(
                TaskResult(task.task_id, TaskState.UPSTREAM_FAILED, 0, None, now, why)
            )
        elif missing:
            logger.info("task %s is skipped: %s was", task.task_id, ", ".join(missing))
            self._skips.add(task.task_id)
            self.unreported.append(skipped(task, f"upstream was skipped: {', '.join(missing)}"))
        return bool(missing)

    def add(self, task: Task, finished: Finished) -> None:
        """Note how a task has ended that was executed."""
        self.unreported.append(finished.result)
        if finished.result.state == TaskState.SUCCESS:
            self.values[task.task_id] = finished.value
        elif finished.result.state == TaskState.SKIPPED:
            self._skips.add(task.task_id)
        else:
            self.failures.append(f"task {task.task_id} failed: {finished.result.error}")
