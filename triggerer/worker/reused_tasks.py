"""Decides which tasks keep their results when a run is repeated in part."""

from __future__ import annotations

from collections.abc import Mapping

from triggerer.domain.dags import DAG
from triggerer.domain.runs import TaskState


def reused_tasks(dag: DAG, finished: Mapping[str, TaskState]) -> dict[str, TaskState]:
    """Return the final states of the tasks that are not executed again.

    A task's return value is lost when the run's process ends. So a successful task is executed again if a task that
    must be executed needs the value. The repeated task emits its events with the keys of the first execution, so no
    event is recorded twice.

    Args:
        finished: The final states of the tasks that may keep their results. Tasks that the DAG no longer has are
            ignored.
    """
    left = {task_id: state for task_id, state in finished.items() if task_id in dag.tasks}
    executed = [task for task_id, task in dag.tasks.items() if task_id not in left]
    while executed:
        for result in executed.pop().arguments.results():
            if left.get(result.task.task_id) is TaskState.SUCCESS:
                del left[result.task.task_id]
                executed.append(result.task)
    return left
