"""Opens the Spark session of one run, on the worker's warm driver or on the run's own driver. Reports the progress."""

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
from triggerer.errors import RunFailed
from triggerer.worker.cluster_wait import ClusterWatch
from triggerer.worker.failures import ProcessStopped
from triggerer.worker.parallel.threads import own_task
from triggerer.worker.spark.explanations import is_of_restarted_server
from triggerer.worker.spark.progress import ProgressWatch
from triggerer.worker.spark.sessions.cluster import why_waiting
from triggerer.worker.spark.sessions.connect import is_connect
from triggerer.worker.spark.sessions.own_driver import DagSettings, OwnDriver
from triggerer.worker.spark.sessions.settling import await_end
from triggerer.worker.spark.threads import cancel_task, describe_jobs, enter_thread

if TYPE_CHECKING:
    from triggerer.worker.spark_holder import SparkHolder

logger = logging.getLogger("triggerer.run")


class RunSession:
    """Opens the run's Spark session when a task first calls `get`, in any thread.

    Use the object in a `with` statement. If the run has a driver of its own, the driver ends at the end of the block.

    Args:
        holder: Opens the session if the run needs no driver of its own.
        modules: Modules of the DAGs folder, whose functions are sent to Spark with their code.
        home: The service's own directory.
        on_wait: Receives a `Wait` with a reason when the run begins to wait for Spark, and a `Wait` without a reason
            when the wait ends.
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
            if isinstance(error, ProcessStopped):
                self._await_end_of_stopped_run()
        elif error is None:
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

    def interrupt(self) -> bool:
        """Stop the session's work, whose result is not needed any longer. Return False if Spark does not answer."""
        if self._own is not None:
            return self._own.interrupt()
        return self._holder.interrupt()

    def await_end(self) -> None:
        """Cancel the work of a failed try, and return once Spark executes none of it.

        If the work does not end, or Spark cannot be asked, kill the driver. On a Spark Connect server, end the session
        instead. If other tasks of the run use the driver or the session, raise instead.

        Raises:
            RunFailed: The work may continue.
        """
        session, task_id = self._progress.session, own_task.get()
        if session is None or self._has_driver_ended():
            return
        try:
            has_ended = self._stop(task_id) and await_end(session, task_id)
        except Exception as error:  # noqa: BLE001 - whatever the connection raises, the work may continue
            logger.info("Spark cannot tell whether the failed try still works there: %s", error)
            has_ended = is_of_restarted_server(error) or self.how_driver_ended(error) is not None
        if has_ended:
            return
        if task_id is not None:
            raise RunFailed("the work of the failed try on Spark does not end")
        if is_connect(session):
            self._holder.end_connect_session()
            return
        logger.warning(
            "the work of the failed try on Spark does not end, so its driver is killed, and the next try gets another"
        )
        if self._own is not None:
            self._own.kill()
        else:
            self._holder.kill_driver("the work of a failed try on it did not end")

    def _await_end_of_stopped_run(self) -> None:
        """Wait until Spark executes no work of the run. Give up after a time limit, or if Spark cannot be asked.

        If the wait takes too long, the executor kills this process.
        """
        session = self._progress.session
        if session is None or self._has_driver_ended():
            return
        try:
            if self.interrupt():
                await_end(session, None)
        except Exception as error:  # noqa: BLE001 - whatever the connection raises, the process ends now
            logger.info("Spark cannot tell whether it still works for the run: %s", error)

    def _has_driver_ended(self) -> bool:
        return self._holder.has_driver_ended() if self._own is None else self._own.has_ended()

    def _stop(self, task_id: str | None) -> bool:
        if task_id is None:
            return self.interrupt()
        self.cancel_task(task_id)
        return True

    def how_driver_ended(self, error: BaseException) -> str | None:
        """Return a sentence that says how the driver ended; None: it lives. See `SparkHolder.how_driver_ended`."""
        if self._own is not None:
            return self._own.how_it_ended()
        return self._holder.how_driver_ended(error)

    def cancel_task(self, task_id: str) -> None:
        """Cancel the jobs of one task, while other tasks of the run continue."""
        if self._progress.session is not None:
            cancel_task(self._progress.session, task_id)

    def begin_task(self, task_id: str) -> None:
        """From now on, collect the progress of this try of the task. The thread that executes the try calls this."""
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
