"""Executes independent tasks of a run at the same time, in threads of the run's process."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, TextIO

from triggerer.domain.runs import TaskState
from triggerer.domain.tasks import Task
from triggerer.worker.failures import ProcessStopped
from triggerer.worker.parallel.threads import own_task, raise_in
from triggerer.worker.task_outcomes import TaskOutcomes
from triggerer.worker.tasks import Finished

_UNWIND_S: Final = 3.0
"""The time that the `finally` blocks of tasks have when the run is stopped. Then the process ends."""


def execute_side_by_side(
    tasks: tuple[Task, ...],
    reused: Mapping[str, TaskState],
    outcomes: TaskOutcomes,
    *,
    limit: int,
    execute: Callable[[Task, Mapping[str, Any]], Finished],
    report: Callable[[], None],
) -> None:
    """Execute the tasks, at most `limit` at once, and at most one task of each pool at once.

    A task begins once all its upstream tasks have succeeded. If an upstream task failed or was skipped, the task is
    left out.

    Args:
        tasks: The tasks, each after its upstream tasks.
        reused: The tasks that are not executed again, with their final states, see `reused_tasks`.
        execute: Called in a thread for each task.
        report: Sends the unreported outcomes. Not called after the last task, because the caller sends the rest with
            the run's end.
    Raises:
        ProcessStopped: The executor stops this process. The tasks were stopped as well.
        Exception: An error of `execute` or `report`. The tasks were stopped as well.
    """
    pending, settled = list(tasks), set[str]()
    running: dict[str, threading.Thread] = {}
    ended: queue.SimpleQueue[tuple[Task, Finished | BaseException]] = queue.SimpleQueue()

    def is_ready(task: Task) -> bool:
        # A run gets only one slot of a pool, even if several of its tasks use the pool. So these tasks run one by one.
        taken = {one.pool for one in tasks if one.task_id in running}
        has_slot = task.pool is None or task.pool not in taken
        return has_slot and all(one.task_id in settled for one in task.upstream)

    def settle_or_start(task: Task) -> None:
        pending.remove(task)
        if (state := reused.get(task.task_id)) is not None:
            outcomes.reuse(task, state)
            settled.add(task.task_id)
        elif outcomes.leave_out_if_blocked(task):
            settled.add(task.task_id)
        else:
            values = dict(outcomes.values)
            running[task.task_id] = _start(task, values, execute, ended, output)

    with _named_output() as output:
        try:
            while pending or running:
                for task in tuple(pending):
                    if len(running) < limit and is_ready(task):
                        settle_or_start(task)
                if outcomes.unreported and (pending or running):
                    report()
                if running:
                    task, result = ended.get()
                    del running[task.task_id]
                    settled.add(task.task_id)
                    if isinstance(result, BaseException):
                        raise result
                    outcomes.add(task, result)
        except BaseException:
            _stop(running)
            raise


def _start(
    task: Task,
    values: Mapping[str, Any],
    execute: Callable[[Task, Mapping[str, Any]], Finished],
    ended: queue.SimpleQueue[tuple[Task, Finished | BaseException]],
    output: Iterable[_NamedLines],
) -> threading.Thread:
    def work() -> None:
        own_task.set(task.task_id)
        result: Finished | BaseException
        try:
            try:
                result = execute(task, values)
            finally:
                for stream in output:
                    stream.end_line()
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            result = error
        ended.put((task, result))

    thread = threading.Thread(target=work, name=f"task-{task.task_id}", daemon=True)
    thread.start()
    return thread


def _stop(running: Mapping[str, threading.Thread]) -> None:
    for thread in running.values():
        raise_in(thread, ProcessStopped)
    until = time.monotonic() + _UNWIND_S
    for thread in running.values():
        thread.join(max(0.0, until - time.monotonic()))


class _NamedLines:
    """A stream that begins each line with the id of the task whose thread writes it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines = threading.local()

    def write(self, text: str) -> int:
        task_id = own_task.get()
        if task_id is None:
            return self._stream.write(text)
        # Write whole lines only. Otherwise one line could contain the output of several tasks.
        *lines, rest = (getattr(self._lines, "rest", "") + text).split("\n")
        self._lines.rest = rest
        if lines:
            self._stream.write("".join(f"[{task_id}] {line}\n" for line in lines))
        return len(text)

    def end_line(self) -> None:
        """Write the text that this thread's task wrote after its last line break. The task has ended."""
        if getattr(self._lines, "rest", ""):
            # If the disk is full, or the run has closed the stream, the rest of the output is lost.
            with suppress(OSError, ValueError):
                self.write("\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _named_output() -> Iterator[tuple[_NamedLines, _NamedLines]]:
    before = sys.stdout, sys.stderr
    named = _NamedLines(sys.stdout), _NamedLines(sys.stderr)
    sys.stdout, sys.stderr = named
    try:
        yield named
    finally:
        sys.stdout, sys.stderr = before
