"""Collects the stages of the Spark work of a run or a task: the newest stages, and a sum of all stages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from triggerer.domain.attempts import SparkProgress, StageProgress, TaskProgress

MOST_STAGES: Final = 20
"""The most stages of a task that are reported one by one. Older stages are only added up, so that the run's row in the
database stays small.
"""


class Stages:
    """Keeps the active stages, the newest stages that are over, and a sum of the older stages."""

    def __init__(self) -> None:
        self._shown: dict[object, StageProgress] = {}
        self._former: SparkProgress | None = None

    @property
    def active(self) -> list[StageProgress]:
        """The stages that are not over."""
        return [stage for stage in list(self._shown.values()) if stage.ended_at is None]

    def get(self, key: object) -> StageProgress | None:
        return self._shown.get(key)

    def put(self, key: object, stage: StageProgress) -> None:
        """Add a stage, or replace what was known of it."""
        self._shown[key] = stage
        over = [key for key, stage in self._shown.items() if stage.ended_at is not None]
        for old in over[:-MOST_STAGES]:
            self._former = _sum(self._former, [self._shown.pop(old)])

    def total(self) -> SparkProgress | None:
        """Return the sum of all stages; None: no stage was added."""
        stages = list(self._shown.values())
        return _sum(self._former, stages) if stages else self._former

    def progress(self) -> TaskProgress | None:
        """Return the sum of all stages, and the newest stages; None: no stage was added."""
        total = self.total()
        if total is None:
            return None
        newest = sorted(self._shown.values(), key=lambda stage: stage.started_at)
        return TaskProgress(total, tuple(newest[-MOST_STAGES:]))


def _sum(former: SparkProgress | None, stages: Iterable[StageProgress]) -> SparkProgress:
    total = former or SparkProgress(0, 0, 0, 0)
    for stage in stages:
        total = SparkProgress(
            stages=total.stages + 1,
            stages_done=total.stages_done + (stage.ended_at is not None),
            tasks=total.tasks + stage.tasks,
            tasks_done=total.tasks_done + stage.tasks_done,
            tasks_failed=total.tasks_failed + stage.tasks_failed,
            rows_read=_plus(total.rows_read, stage.rows_read),
            rows_written=_plus(total.rows_written, stage.rows_written),
            bytes_read=_plus(total.bytes_read, stage.bytes_read),
        )
    return total


def _plus(total: int | None, more: int | None) -> int | None:
    return total if more is None else (total or 0) + more
