"""Which tasks an attempt leaves as they are, when a run is repeated in part."""

from __future__ import annotations

from collections.abc import Mapping

from triggerer.domain.dags import DAG
from triggerer.domain.runs import TaskState


def kept_tasks(dag: DAG, kept: Mapping[str, TaskState]) -> dict[str, TaskState]:
    """Return how those tasks ended that are not executed.

    What tasks return lives in the worker's memory. So one that has succeeded is executed again, to have it, if a
    task needs it that is executed: what it emits then is what it has emitted before.

    Args:
        kept: What is to be left; tasks that the file no longer has are ignored, and new ones are executed.
    """
    left = {task_id: state for task_id, state in kept.items() if task_id in dag.tasks}
    executed = [task for task_id, task in dag.tasks.items() if task_id not in left]
    while executed:
        for result in executed.pop().arguments.results():
            if left.get(result.task.task_id) is TaskState.SUCCESS:
                del left[result.task.task_id]
                executed.append(result.task)
    return left
