"""Reads the progress of a run's work from Spark about once a second, and reports each change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from triggerer.domain.attempts import Progress
from triggerer.worker.spark.sessions.connect import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EVERY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Stage:
    tasks: int
    done: int
    failed: int = 0
    is_over: bool = False
    rows_read: int = 0
    rows_written: int = 0
    bytes_read: int = 0


class ProgressWatch:
    """Watches a run's sessions in a thread, from `follow` to `stop`.

    Args:
        tell: Receives the progress at each change. The watching thread calls it.

    Attributes:
        session: The session that is watched.
    """

    def __init__(self, tell: Callable[[Progress], None], *, every_s: float = _EVERY_S) -> None:
        self._tell = tell
        self._every_s = every_s
        self._stages: dict[object, _Stage] = {}
        self.session: SparkSession | None = None
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._told: Progress | None = None
        self._counts_rows = False

    def follow(self, session: SparkSession) -> None:
        """Watch this session instead of the former one. The method may be called again."""
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
        """End the watch. Afterwards at most the report that is being made reaches `tell`."""
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(self._every_s):
            try:
                if self._counts_rows:
                    self._look()
            except Exception:  # noqa: BLE001 - whatever the broken connection raises, the run itself meets it too
                continue
            progress = self.progress()
            if progress is not None and progress != self._told and not self._ended.is_set():
                self._told = progress
                self._tell(progress)

    def progress(self) -> Progress | None:
        """Return the sum of all stages that were seen. None: no stage was seen."""
        stages = list(self._stages.values())
        if not stages:
            return None
        return Progress(
            stages=len(stages),
            stages_done=sum(stage.is_over for stage in stages),
            tasks=sum(stage.tasks for stage in stages),
            tasks_done=sum(stage.done for stage in stages),
            tasks_failed=sum(stage.failed for stage in stages),
            rows_read=sum(stage.rows_read for stage in stages) if self._counts_rows else None,
            rows_written=sum(stage.rows_written for stage in stages) if self._counts_rows else None,
            bytes_read=sum(stage.bytes_read for stage in stages),
        )

    def _look(self) -> None:
        """Read the active stages, and one last time the stages that were active before."""
        session = self.session
        assert session is not None
        context: Any = session.sparkContext
        active = set(context.statusTracker().getActiveStageIds())
        store = context._jsc.sc().statusStore()  # noqa: SLF001
        pending = {key for key, stage in self._stages.items() if not stage.is_over}
        for stage_id in active | pending:
            seen = store.lastStageAttempt(stage_id)
            self._stages[stage_id] = _Stage(
                tasks=seen.numTasks(),
                done=seen.numCompleteTasks(),
                failed=seen.numFailedTasks(),
                is_over=stage_id not in active,
                rows_read=seen.inputRecords(),
                rows_written=seen.outputRecords(),
                bytes_read=seen.inputBytes(),
            )

    def _on_connect(
        self, stages: Iterable[Any], inflight_tasks: int, operation_id: str | None, done: bool
    ) -> None:
        """Store the progress of one operation. The client calls this method from the operation's own thread."""
        for stage in stages:
            self._stages[operation_id, stage.stage_id] = _Stage(
                tasks=stage.num_tasks,
                done=stage.num_completed_tasks,
                is_over=stage.done or done,
                bytes_read=stage.num_bytes_read,
            )
