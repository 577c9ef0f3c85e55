"""The Spark session of one run: on the worker's warm driver or on a driver of its own, with its waits and progress."""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from triggerer.domain.attempts import RunOrder, RunProgress, TaskResult, Wait
from triggerer.domain.dags import DAG
from triggerer.domain.runs import TaskState
from triggerer.worker.cluster_wait import ClusterWatch
from triggerer.worker.parallel.threads import own_task
from triggerer.worker.spark.progress import ProgressWatch
from triggerer.worker.spark.sessions.cluster import why_waiting
from triggerer.worker.spark.sessions.own_driver import DagSettings, OwnDriver
from triggerer.worker.spark.threads import cancel_task, describe_jobs, enter_thread

if TYPE_CHECKING:
    from triggerer.worker.session import SparkHolder

logger = logging.getLogger("triggerer.run")


class RunSession:
    """Opens the session when a task first asks for it, in any thread. A run's own driver ends with the block.

    Args:
        holder: The worker's warm session.
        modules: See `SparkHolder.get`.
        home: The service's own directory.
        on_wait: Receives the reason when the run begins to wait for Spark, and None when the wait ends.
        on_progress: Receives the progress of the run's work on Spark.
    """

    def __init__(
        self,
        holder: SparkHolder,
        order: RunOrder,
        dag: DAG,
        modules: tuple[ModuleType, ...],
        *,
        home: Path,
        on_wait: Callable[[Wait], None],
        on_progress: Callable[[RunProgress], None],
    ) -> None:
        self._holder = holder
        self._dag = DagSettings(dag.spark_conf, dag.spark_packages)
        self._name = f"{dag.dag_id} {order.tag}"
        self._run = f"{order.dag_id} {order.run_id}"
        self._modules = modules
        self._home = home
        self._on_wait = on_wait
        self._own: OwnDriver | None = None
        self._opening = threading.Lock()
        self._watch = ClusterWatch(self._why_waiting, on_wait, order.log_path)
        self._progress = ProgressWatch(on_progress)

    def __enter__(self) -> Self:
        self._watch.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()
        self._watch.__exit__(kind, error, trace)
        if self._own is None:
            return
        if error is None:
            self._own.close()
        else:
            self._own.kill()

    def get(self) -> Any:
        """Return a live session, ready for the task of this thread.

        Raises:
            SubmitFailed: No session could be opened.
        """
        with self._opening:
            if self._holder.needs_cluster:
                self._watch.start()
            session = self._open()
            self._progress.follow(session)
        if (task_id := own_task.get()) is None:
            describe_jobs(session, self._run)
        else:
            enter_thread(session, self._run, task_id)
        return session

    def interrupt(self) -> None:
        """Stop the session's jobs, because no code waits for their results any longer."""
        if self._own is not None:
            self._own.interrupt()
        elif self._holder.is_open:
            self._holder.interrupt()

    def how_driver_ended(self, error: BaseException) -> str | None:
        """Return a sentence that says how the driver ended, if the error comes from that. None: it does not."""
        if self._own is not None:
            return self._own.how_it_ended()
        return self._holder.how_driver_ended(error)

    def cancel_task(self, task_id: str) -> None:
        """Cancel the jobs of one task, while other tasks of the run continue."""
        if self._progress.session is not None:
            cancel_task(self._progress.session, task_id)

    def begin_task(self, task_id: str) -> None:
        """Begin a try of a task, in the thread that executes it."""
        self._progress.begin_task(task_id)

    def end_task(self, result: TaskResult) -> TaskResult:
        """Return the result of a task's last try, with the progress of its Spark work."""
        has_succeeded = result.state is TaskState.SUCCESS
        progress = self._progress.end_task(result.task_id, has_succeeded=has_succeeded)
        return result if progress is None else dataclasses.replace(result, progress=progress)

    def tell_absence(self, reason: str | None) -> None:
        """Show why the run waits for a master or a server. None: the wait is over."""
        if reason is None:
            logger.info("the wait is over")
        else:
            logger.warning("the run waits for %s", reason)
        self._on_wait(Wait(reason, datetime.now(UTC)))

    def _open(self) -> Any:
        self._holder.await_cluster(self.tell_absence)
        settings = self._holder.settings
        if self._dag.need_own_driver(settings):
            if self._own is None:
                self._own = OwnDriver(settings, self._dag, home=self._home, name=self._name)
            is_open = self._own.session is not None
            return self._showing(functools.partial(self._own.get, self._modules), is_open=is_open)
        get = functools.partial(self._holder.get, self._modules)
        session = self._showing(get, is_open=self._holder.is_open)
        self._dag.apply(session)
        return session

    def _showing(self, get: Callable[[], Any], *, is_open: bool) -> Any:
        """Call `get`, and show the run as waiting while a session opens."""
        if is_open:
            return get()
        self._on_wait(Wait("Spark, which is starting", datetime.now(UTC)))
        try:
            return get()
        finally:
            self._on_wait(Wait(None, datetime.now(UTC)))

    def _why_waiting(self) -> str | None:
        if self._own is None:
            return self._holder.why_waiting()
        session = self._own.session
        return None if session is None else why_waiting(session)
