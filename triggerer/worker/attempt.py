"""Executes one attempt of a run in the run's process: loads the DAG file, executes the tasks, reports the results."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from triggerer.domain.attempts import RunEnd, RunOrder, RunProgress, TaskResult, Wait
from triggerer.domain.dags import DAG
from triggerer.domain.launches import FormerLaunch, Launch
from triggerer.domain.runs import RunState
from triggerer.domain.tasks import Task
from triggerer.errors import TriggererError
from triggerer.plugins.dag_file import LoadedFile, load_dag_file
from triggerer.plugins.folder import STABLE_AFTER_S, Stamp, has_just_changed, stamp_of
from triggerer.worker.api_token import offered
from triggerer.worker.context import RunContext
from triggerer.worker.events.mappings import QueryEvents
from triggerer.worker.failures import ProcessStopped, explain, storable
from triggerer.worker.launch_reports import SessionLaunches, launch_reports
from triggerer.worker.launchers.former_attempts import FormerAttempts, StillUnknown, former_attempts
from triggerer.worker.parallel.side_by_side import execute_side_by_side
from triggerer.worker.protocol import RunReport, TaskStart
from triggerer.worker.reused_tasks import reused_tasks
from triggerer.worker.spark.sessions.run_session import RunSession
from triggerer.worker.spark_holder import SparkHolder
from triggerer.worker.task_outcomes import TaskOutcomes
from triggerer.worker.tasks import Finished, TaskRunner
from triggerer.worker.users_code import users_code

if TYPE_CHECKING:
    from triggerer.worker.submit.applications import ApplicationSubmitter

logger = logging.getLogger("triggerer.run")

_LOOK_EVERY_S: Final = 0.05


class _Files(NamedTuple):
    """The time stamps of a DAG file, and of the folders from which the file can import modules."""

    file: Stamp | None
    folders: tuple[Stamp | None, ...]

    @classmethod
    def now(cls, path: Path, root: Path) -> _Files:
        return cls(stamp_of(path), (stamp_of(root), stamp_of(path.parent)))

    def are_stable(self, for_s: float) -> bool:
        """True if the time stamps show no change for this many seconds."""
        stamps = (self.file, *self.folders)
        return not any(stamp is not None and has_just_changed(stamp, for_s) for stamp in stamps)


class FileStates:
    """Remembers, for each DAG file that a run could not use, since when the file is unchanged.

    A file that changed a moment ago may be half-written. The modification time does not always show the change: when a
    writer truncates a file, the file's size changes first.

    Args:
        tell: Receives each new state of a file, for the processes of later runs.
    """

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell = tell
        self._first: dict[Path, tuple[_Files, float]] = {}

    def recall(self, told: Mapping[str, Mapping[str, Any]]) -> None:
        """Remember the file states in `told`, which earlier processes of this worker saw.

        Their times are valid in this process, because the processes on a machine share one monotonic clock.
        """
        for path, one in told.items():
            file, *folders = (None if stamp is None else tuple(stamp) for stamp in one["stamps"])
            self._first[Path(path)] = (_Files(file, tuple(folders)), one["since"])

    def unchanged_s(self, path: Path, files: _Files) -> float:
        """Return the seconds since a process of this worker first saw the state `files`; 0 if the state is new."""
        now = time.monotonic()
        known, since = self._first.get(path, (None, now))
        if known != files:
            self._first[path] = (files, now)
            self._tell(str(path), stamps=[files.file, *files.folders], since=now)
            return 0.0
        return now - since


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """The settings and callables of a run's process that do not depend on the run."""

    dags_folder: Path
    home: Path
    """The service's own directory."""
    file_patience_s: float
    """How long a run waits for a missing file, because a deployment may be replacing the file."""
    holds_broken: bool
    """True: a run whose DAG file does not load is queued again. False: the run fails."""
    file_states: FileStates
    query: Callable[..., Any]
    """Sends a query to the executor and waits for the reply, see `QueryEvents`.

    The first argument is the run's primary key, as for `report` and the `on_...` callables.
    """
    spark: SparkHolder
    output_into: Callable[[Path], AbstractContextManager[None]]
    """Appends the output of this process to a run's log during a `with` block, see `triggerer.worker.logs.writing`."""
    on_start: Callable[[int, TaskStart], None]
    on_wait: Callable[[int, Wait], None]
    on_progress: Callable[[int, RunProgress], None]
    on_launch: Callable[[int, Launch], None]
    report: Callable[[int, RunReport], None]


def execute_run(order: RunOrder, worker: WorkerContext) -> None:
    """Execute a run and report its results. The last report has the run's end.

    Raises:
        ProcessStopped: The executor stops this process. The run's end is not reported.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(worker.output_into(Path(order.log_path)))
        except OSError as error:
            reason = f"the run's log {order.log_path} cannot be written: {error}"
            end = RunEnd(RunState.FAILED, datetime.now(UTC), reason)
            worker.report(order.run_pk, RunReport((), end))
        else:
            with offered(order.api_token):
                _Attempt(order, worker).execute()


class _Until(NamedTuple):
    """The moments, on the monotonic clock, until which a run waits for its DAG file."""

    missing: float
    """When a file that is still missing counts as deleted."""
    changing: float
    """When the run stops waiting for a file that still changes, and uses it as it is."""


class _Attempt:
    def __init__(self, order: RunOrder, worker: WorkerContext) -> None:
        self._order = order
        self._worker = worker
        self._followed: list[FormerLaunch] = []
        """Applications of earlier attempts that still run. A task waits for its application instead of submitting
        another.
        """
        self._on_launch = launch_reports(
            order,
            functools.partial(worker.on_launch, order.run_pk),
            functools.partial(worker.query, order.run_pk),
        )

    def execute(self) -> None:
        order = self._order
        logger.info("run %s of DAG %s, attempt %d", order.run_id, order.dag_id, order.attempt)
        if order.former and not self._end_former_launches():
            return
        self._worker.spark.begin_run(SessionLaunches(order, self._on_launch))
        try:
            loaded = self._load_when_stable()
            dag = loaded.dags.get(order.dag_id)
        except ProcessStopped:
            raise
        except BaseException as error:
            logger.error("the DAG could not be loaded", exc_info=error)
            own = isinstance(error, TriggererError)
            reason = str(error) if own else explain(error, self._worker.dags_folder)
            self._end_unloaded(storable(f"{order.path} could not be loaded: {reason}"))
            return
        if dag is None:
            self._end_unloaded(f"{order.path} does not define the DAG {order.dag_id} any more")
            return
        with RunSession(
            self._worker.spark,
            order,
            dag,
            loaded.modules,
            home=self._worker.home,
            on_wait=functools.partial(self._worker.on_wait, order.run_pk),
            on_progress=functools.partial(self._worker.on_progress, order.run_pk),
        ) as spark:
            tasks, failures = self._run_tasks(dag, spark)
        self._end(tasks, failures)

    def _end_former_launches(self) -> bool:
        """End the launches of earlier attempts. If one may still be at work, queue the run again, and return False.

        An application in cluster mode continues: the task waits for this application instead of submitting another one.
        """
        try:
            self._followed = self._former_attempts().end_all(self._order.former, may_reattach=True)
        except StillUnknown as unknown:
            logger.warning("the run waits for %s", unknown)
            end = RunEnd(RunState.FAILED, datetime.now(UTC), storable(str(unknown)))
            self._report(RunReport((), end, is_blocked=True))
            return False
        return True

    def _former_attempts(self) -> FormerAttempts:
        return former_attempts(
            self._worker.spark.settings,
            on_launch=functools.partial(self._worker.on_launch, self._order.run_pk),
            on_wait=functools.partial(self._worker.on_wait, self._order.run_pk),
        )

    def _end_unfollowed(self) -> None:
        """End the applications of earlier attempts that no task waited for, such as the one of a removed task."""
        left = [one for one in self._followed if one.tag not in self._on_launch.reported]
        if left:
            try:
                self._former_attempts().end_all(left)
            except StillUnknown as unknown:
                # Only log the error. Once this run has ended, the executor's `LeftLaunches` tries to end the launch.
                logger.warning("%s", unknown)

    def _load_when_stable(self) -> LoadedFile:
        """Load the DAG file. A file that is broken or lacks the DAG may be half-written: load it again when it changes.

        Raises:
            Exception: The error of the last load. Raised once the file no longer changes, or the waiting time is over.
        """
        root = self._worker.dags_folder
        path = root / self._order.path
        began, patience_s = time.monotonic(), self._worker.file_patience_s
        # Give a changing file enough time to become stable, even if the patience for a missing file is shorter.
        until = _Until(began + patience_s, began + max(patience_s, 2 * STABLE_AFTER_S))
        while True:
            self._wait_for_file(path, until.missing)
            files = _Files.now(path, root)
            try:
                loaded = self._load(path)
            except Exception as error:
                lacks_module = isinstance(error.__cause__, ModuleNotFoundError)
                stable_s = patience_s if lacks_module else STABLE_AFTER_S
                if not self._changes(files, path, until, stable_s):
                    raise
            else:
                if self._order.dag_id in loaded.dags:
                    return loaded
                if not self._changes(files, path, until, STABLE_AFTER_S):
                    return loaded
            logger.warning("%s is being replaced; it is loaded again", self._order.path)

    def _changes(self, files: _Files, path: Path, until: _Until, stable_s: float) -> bool:
        """Wait until the files change, and return True. Return False if the files are stable, or the time is over.

        Args:
            stable_s: The files are stable after this many seconds without a change.
        """
        while time.monotonic() < until.changing:
            if _Files.now(path, self._worker.dags_folder) != files:
                return True
            if files.file is None:
                # The file has vanished. Return True if the caller may still wait for a missing file.
                return time.monotonic() < until.missing
            watched_s = self._worker.file_states.unchanged_s(path, files)
            if watched_s >= STABLE_AFTER_S and files.are_stable(stable_s):
                return False
            time.sleep(_LOOK_EVERY_S)
        return False

    def _load(self, path: Path) -> LoadedFile:
        with users_code():
            loaded = load_dag_file(path, self._worker.dags_folder)
        for problem in loaded.warnings:
            logger.warning("%s:%s: %s", problem.file, problem.line, problem.reason)
        return loaded

    def _wait_for_file(self, path: Path, deadline: float) -> None:
        """Return once the file exists, or has been missing for so long that it counts as deleted."""
        if path.is_file():
            return
        since = datetime.now(UTC)
        logger.warning("%s is missing; this run waits for it", self._order.path)
        reason = f"the DAG file {self._order.path}, which is missing"
        self._worker.on_wait(self._order.run_pk, Wait(reason, since))
        # Poll, because the file system may not report changes.
        while not path.is_file() and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S)
        self._worker.on_wait(self._order.run_pk, Wait(None, datetime.now(UTC)))

    def _run_tasks(self, dag: DAG, spark: RunSession) -> tuple[list[TaskResult], list[str]]:
        """Execute the tasks. Return the results that are not reported yet, and the failures."""
        query: QueryEvents = functools.partial(self._worker.query, self._order.run_pk)
        context = RunContext(self._order, dag, query, spark.get, self._submit_for(dag, spark))
        runner = TaskRunner(
            context,
            self._worker.dags_folder,
            on_start=functools.partial(self._start, spark),
            on_failed_try=functools.partial(self._worker.on_start, self._order.run_pk),
            cancel_work=spark.cancel_task,
            on_abandoned=functools.partial(self._abandon, spark),
            await_end=spark.await_end,
            find_cause=spark.how_driver_ended,
        )

        def execute(task: Task, values: Mapping[str, Any]) -> Finished:
            finished = runner.execute(task, values)
            return Finished(spark.end_task(finished.result), finished.value)

        outcomes = TaskOutcomes()
        reused = reused_tasks(dag, self._order.repeat.kept)
        if dag.max_parallel_tasks > 1:
            execute_side_by_side(
                dag.tasks_in_order(),
                reused,
                outcomes,
                limit=dag.max_parallel_tasks,
                execute=execute,
                report=functools.partial(self._report_tasks, outcomes),
            )
            return outcomes.unreported, outcomes.failures
        for task in dag.tasks_in_order():
            self._report_tasks(outcomes)
            if (state := reused.get(task.task_id)) is not None:
                outcomes.reuse(task, state)
            elif not outcomes.leave_out_if_blocked(task):
                outcomes.add(task, execute(task, outcomes.values))
        return outcomes.unreported, outcomes.failures

    def _start(self, spark: RunSession, start: TaskStart) -> None:
        spark.begin_task(start.task_id)
        self._worker.on_start(self._order.run_pk, start)

    def _submit_for(self, dag: DAG, spark: RunSession) -> Callable[..., None]:
        """Return a function that submits a task's Spark application. `ApplicationSubmitter` is imported when needed."""
        making = threading.Lock()

        @functools.cache
        def submitter() -> ApplicationSubmitter:
            from triggerer.worker.submit.applications import ApplicationSubmitter

            return ApplicationSubmitter(
                settings=self._worker.spark.settings,
                home=self._worker.home,
                dags_folder=self._worker.dags_folder,
                order=self._order,
                spark_conf=dag.spark_conf,
                spark_packages=dag.spark_packages,
                on_launch=self._on_launch,
                tell_absence=spark.tell_absence,
            )

        def submit(*args: Any, **kwargs: Any) -> None:
            # Tasks that run side by side must share one submitter, which knows the tries of each task.
            with making:
                shared = submitter()
            shared.submit(*args, **kwargs)

        return submit

    def _report_tasks(self, outcomes: TaskOutcomes) -> None:
        if outcomes.unreported:
            self._report(RunReport(tuple(outcomes.unreported), None))
            outcomes.unreported.clear()

    def _abandon(self, spark: RunSession) -> None:
        try:
            spark.interrupt()
        except Exception:
            logger.exception("the work on Spark could not be stopped")

    def _end(self, tasks: Sequence[TaskResult], failures: list[str]) -> None:
        state = RunState.FAILED if failures else RunState.SUCCESS
        logger.info("run %s: %s", self._order.run_id, state)
        self._end_unfollowed()
        self._worker.spark.end_run()
        end = RunEnd(state, datetime.now(UTC), "\n\n".join(failures) or None)
        self._report(RunReport(tuple(tasks), end))

    def _end_unloaded(self, reason: str) -> None:
        if not self._worker.holds_broken:
            self._end((), [reason])
            return
        logger.info("run %s: not begun, because its file does not load", self._order.run_id)
        end = RunEnd(RunState.FAILED, datetime.now(UTC), reason)
        self._report(RunReport((), end, is_unloaded=True))

    def _report(self, report: RunReport) -> None:
        self._worker.report(self._order.run_pk, report)
