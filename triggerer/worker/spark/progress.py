"""Reads the progress of a run's work from Spark about once a second, and reports each change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from triggerer.domain.attempts import RunProgress, StageProgress, TaskProgress
from triggerer.worker.failures import storable
from triggerer.worker.parallel.threads import own_task
from triggerer.worker.spark.sessions.connect import is_connect
from triggerer.worker.spark.stages import Stages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EVERY_S: Final = 1.0
_MOST_OF_NAME: Final = 200
_NO_NAME: Final = " at NativeMethodAccessorImpl.java:0"
"""How a stage's name ends if Spark does not know the line of Python that caused the stage."""


class ProgressWatch:
    """Watches a run's sessions in a thread, from `follow` to `stop`.

    Args:
        tell: Receives the progress at each change. The watching thread calls it.

    Attributes:
        session: The session that is watched; None: no task has asked for a session yet.
    """

    def __init__(self, tell: Callable[[RunProgress], None], *, every_s: float = _EVERY_S) -> None:
        self._tell = tell
        self._every_s = every_s
        self._all = Stages()
        self._by_task: dict[str, Stages] = {}
        """The stages of each running task, in its last try."""
        self._current: str | None = None
        """The task that runs alone. None: tasks run side by side, and a stage's scheduler pool has the name of its
        task.
        """
        self._lock = threading.RLock()
        self.session: SparkSession | None = None
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._last_reported: RunProgress | None = None
        self._counts_rows = False

    def follow(self, session: SparkSession) -> None:
        """Watch this session from now on."""
        if session is self.session:
            return
        self.session = session
        if is_connect(session):
            register: Any = session.registerProgressHandler  # type: ignore[attr-defined,unused-ignore]
            register(self._on_connect)
        else:
            self._counts_rows = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="spark-progress", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the watch. A report that is being made now may still reach `tell` afterwards."""
        self._ended.set()

    def begin_task(self, task_id: str) -> None:
        """From now on, collect the progress of this try of the task. The thread that executes the try calls this."""
        self._by_task[task_id] = Stages()
        if own_task.get() is None:
            self._current = task_id

    def end_task(self, task_id: str, *, has_succeeded: bool) -> TaskProgress | None:
        """Return the progress of the task's last try. None: no stage was seen."""
        stages = self._by_task[task_id]
        # Do not ask Spark after a failure. Spark may be the cause, and may not answer.
        if has_succeeded and self._counts_rows and stages.active:
            self._read_stages_if_possible()
        del self._by_task[task_id]
        return stages.progress()

    def _watch(self) -> None:
        while not self._ended.wait(self._every_s):
            if self._counts_rows:
                self._read_stages_if_possible()
            progress = self.progress()
            if (
                progress is not None
                and progress != self._last_reported
                and not self._ended.is_set()
            ):
                self._last_reported = progress
                self._tell(progress)

    def progress(self) -> RunProgress | None:
        """Return the progress of the run's work. None: no stage was seen."""
        total = self._all.total()
        if total is None:
            return None
        by_task = {task_id: stages.progress() for task_id, stages in list(self._by_task.items())}
        return RunProgress(total, {task: one for task, one in by_task.items() if one is not None})

    def _read_stages_if_possible(self) -> None:
        try:
            with self._lock:
                self._read_stages()
        except Exception:  # noqa: BLE001 - the connection is broken, so the run gets an error, too
            return

    def _read_stages(self) -> None:
        """Read the active stages and, one last time, each stage that has ended since the previous call."""
        session = self.session
        assert session is not None
        context: Any = session.sparkContext
        active = set(context.statusTracker().getActiveStageIds())
        store = context._jsc.sc().statusStore()  # noqa: SLF001
        for stage_id in active | {one.stage_id for one in self._all.active}:
            seen = store.lastStageAttempt(stage_id)
            before = self._all.get(stage_id) or StageProgress(
                stage_id,
                storable(seen.name().removesuffix(_NO_NAME))[:_MOST_OF_NAME],
                _instant(seen.submissionTime()) or datetime.now(UTC),
                None,
                0,
                0,
            )
            is_over = stage_id not in active
            stage = replace(
                before,
                ended_at=(_instant(seen.completionTime()) or datetime.now(UTC))
                if is_over
                else None,
                tasks=seen.numTasks(),
                tasks_done=seen.numCompleteTasks(),
                tasks_failed=seen.numFailedTasks(),
                rows_read=seen.inputRecords(),
                rows_written=seen.outputRecords(),
                bytes_read=seen.inputBytes(),
            )
            self._put(stage_id, stage, self._current or seen.schedulingPool())

    def _on_connect(
        self, stages: Iterable[Any], inflight_tasks: int, operation_id: str | None, done: bool
    ) -> None:
        """Store the progress of one operation. The client calls this method from the operation's own thread."""
        now = datetime.now(UTC)
        for one in stages:
            key = (operation_id, one.stage_id)
            before = self._all.get(key)
            is_over = one.done or done
            stage = StageProgress(
                one.stage_id,
                "",
                now if before is None else before.started_at,
                now if is_over else None,
                tasks=one.num_tasks,
                tasks_done=one.num_completed_tasks,
                bytes_read=one.num_bytes_read,
            )
            self._put(key, stage, own_task.get() or self._current)

    def _put(self, key: object, stage: StageProgress, task_id: str | None) -> None:
        """Store the state of a stage. The stage stays with the task for which it was first stored."""
        with self._lock:
            is_new = self._all.get(key) is None
            self._all.put(key, stage)
            for task, stages in list(self._by_task.items()):
                if stages.get(key) is not None or (is_new and task == task_id):
                    stages.put(key, stage)


def _instant(option: Any) -> datetime | None:
    """Return the instant of Scala's `Option[Date]`."""
    if not option.isDefined():
        return None
    return datetime.fromtimestamp(option.get().getTime() / 1000, UTC)
