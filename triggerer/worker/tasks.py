"""Executes one task: its tries, its timeout, and its events."""

from __future__ import annotations

import dataclasses
import logging
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import FrameType, GeneratorType
from typing import Any

from triggerer.domain.assets import Metadata
from triggerer.domain.attempts import EmittedEvent, TaskResult
from triggerer.domain.runs import TaskState
from triggerer.domain.tasks import SkipTask, Task
from triggerer.errors import RunFailed
from triggerer.worker.context import RunContext
from triggerer.worker.events.outlets import OutletEvents
from triggerer.worker.failures import (
    ProcessStopped,
    TaskTimeout,
    explain,
    storable,
)
from triggerer.worker.parallel.threads import own_task, thread_time_limit
from triggerer.worker.protocol import TaskStart
from triggerer.worker.spark.explanations import explain_spark
from triggerer.worker.spark.jvm.connections import forget_connection
from triggerer.worker.users_code import users_code

logger = logging.getLogger("triggerer.run")


@dataclass(frozen=True, slots=True)
class Finished:
    """A task after its last try. `value` is the return value, for downstream tasks."""

    result: TaskResult
    value: Any = None


class TaskRunner:
    """Executes tasks of one attempt of a run: in the main thread, or each in its own thread if tasks run side by side.

    Args:
        on_start: Called at each try before the user's code starts.
        on_failed_try: Called after a failed try, before the task waits for its retry or for the end of its work on
            Spark. The argument has no timeout, because the timeout does not apply to the wait.
        cancel_work: Ends the Spark work of the task with this id. Called from another thread when the task's time is
            up, and only if tasks run side by side.
        on_abandoned: Called when a try in the main thread has timed out, because its work on Spark may continue.
        await_end: Cancels the work of a failed try on Spark, and returns once Spark executes none of it. Raises
            `RunFailed` if the work does not end.
        find_cause: Returns a sentence about the end of Spark's driver; None: the driver has not ended. Called with the
            error of a try.
    """

    def __init__(
        self,
        context: RunContext,
        dags_folder: Path,
        *,
        on_start: Callable[[TaskStart], None],
        on_failed_try: Callable[[TaskStart], None],
        cancel_work: Callable[[str], None],
        on_abandoned: Callable[[], None],
        await_end: Callable[[], None],
        find_cause: Callable[[BaseException], str | None],
    ) -> None:
        self._context = context
        self._dags_folder = dags_folder
        self._on_start = on_start
        self._on_failed_try = on_failed_try
        self._cancel_work = cancel_work
        self._on_abandoned = on_abandoned
        self._await_end = await_end
        self._find_cause = find_cause

    def execute(self, task: Task, results: Mapping[str, Any]) -> Finished:
        """Try the task until it succeeds or has no retries left. The last error becomes the error of the result.

        Raises:
            ProcessStopped: The executor stops this process. The task's `finally` blocks have run.
        """
        for try_number in range(1, task.retries + 2):
            started_at = datetime.now(UTC)
            key = self._context.dag_run.partition_key
            outlet_events = OutletEvents(task.outlets, partition_key=key)
            timeout_s = None if task.timeout is None else task.timeout.total_seconds()
            start = TaskStart(task.task_id, try_number, started_at, timeout_s)
            self._on_start(start)
            try:
                with self._time_limit(task):
                    value, events = self._attempt(task, results, outlet_events)
            except ProcessStopped:
                raise
            except SkipTask as skip:
                logger.info(
                    "task %s is skipped: %s", task.task_id, skip.reason or "no reason given"
                )
                return Finished(skipped(task, skip.reason, try_number, started_at))
            except BaseException as error:
                has_timed_out = isinstance(error, TaskTimeout)
                if has_timed_out and own_task.get() is None:
                    self._on_abandoned()
                logger.error("task %s, try %d failed", task.task_id, try_number, exc_info=error)
                failure = self._explain(error)
            else:
                logger.info("task %s succeeded", task.task_id)
                result = TaskResult(
                    task.task_id,
                    TaskState.SUCCESS,
                    try_number,
                    started_at,
                    datetime.now(UTC),
                    events=events,
                )
                return Finished(result, value)
            is_last = try_number > task.retries
            if is_last and not has_timed_out:
                break
            # The try is over, so its timeout must not apply to the wait.
            self._on_failed_try(dataclasses.replace(start, timeout_s=None))
            try:
                if is_last:
                    # A run must no longer change data once its end is stored.
                    self._await_end()
                else:
                    self._await_next_try(task)
            except RunFailed as refusal:
                why = str(refusal) if is_last else f"{refusal}, so the task is not tried again"
                failure = storable(f"{why}.\n\n{failure}")
                break
        ended_at = datetime.now(UTC)
        return Finished(
            TaskResult(task.task_id, TaskState.FAILED, try_number, started_at, ended_at, failure)
        )

    def _await_next_try(self, task: Task) -> None:
        logger.info("task %s is tried again in %s", task.task_id, task.retry_delay)
        until = time.monotonic() + task.retry_delay.total_seconds()
        self._await_end()
        time.sleep(max(0.0, until - time.monotonic()))

    def _time_limit(self, task: Task) -> AbstractContextManager[None]:
        if own_task.get() is None:
            return time_limit(task.timeout)
        return thread_time_limit(task.timeout, partial(self._cancel_work, task.task_id))

    def _attempt(
        self, task: Task, results: Mapping[str, Any], outlet_events: OutletEvents
    ) -> tuple[Any, tuple[EmittedEvent, ...]]:
        arguments = self._context.arguments(task, outlet_events)
        # Log this directly before the user's code starts, because the message says how long the start took.
        logger.info(
            "task %s begins %.6f s after the run was queued",
            task.task_id,
            (datetime.now(UTC) - self._context.dag_run.queued_at).total_seconds(),
        )
        with users_code():
            value = task.call(
                context=arguments,
                results=results,
                render=lambda name, given: self._context.render(task, name, given, arguments),
            )
            if isinstance(value, GeneratorType):
                value = _exhaust(value, outlet_events)
        return value, outlet_events.emitted()

    def _explain(self, error: BaseException) -> str:
        if isinstance(error, SystemExit):
            return f"the task called sys.exit({error.code!r})"
        text = explain(error, self._dags_folder)
        # If the driver has ended, Spark's own error only says that a connection was closed.
        sentence = self._find_cause(error) or explain_spark(error)
        return text if sentence is None else storable(f"{sentence}.\n\n{text}")


def skipped(
    task: Task, reason: str | None, try_number: int = 0, started_at: datetime | None = None
) -> TaskResult:
    """Return the result of a skipped task. `try_number` is 0 if an upstream task was skipped, so there was no try."""
    error = None if reason is None else storable(reason)
    now = datetime.now(UTC)
    return TaskResult(task.task_id, TaskState.SKIPPED, try_number, started_at, now, error)


def _exhaust(generator: GeneratorType[Any, Any, Any], outlet_events: OutletEvents) -> Any:
    """Apply the metadata that a generator yields, and return the generator's return value as the task's result."""
    while True:
        try:
            item = next(generator)
        except StopIteration as stop:
            return stop.value
        if not isinstance(item, Metadata):
            raise TypeError(f"a task yields Metadata and nothing else, not {item!r}")
        outlet_events.apply(item)


@contextmanager
def time_limit(limit: timedelta | None) -> Iterator[None]:
    """Raise `TaskTimeout` in the main thread when the time is up. Only the main thread may call this function.

    Code that does not return to Python, for instance in a C library, is not interrupted. In this case, the executor
    kills the process a little later.
    """
    if limit is None:
        yield
        return

    late = f"the task did not end within {limit}"
    has_expired = False

    def expire(number: int, frame: FrameType | None) -> None:
        nonlocal has_expired
        has_expired = True
        forget_connection()
        raise TaskTimeout(late)

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, limit.total_seconds())
    try:
        yield
    except (TaskTimeout, ProcessStopped):
        raise
    except BaseException as error:
        if has_expired:
            # The task's code has caught the timeout, and raised another exception.
            raise TaskTimeout(late) from error
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
