"""A timetable without runs: all runs are triggered manually."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from triggerer.domain.timetables.base import (
    DagRunInfo,
    DataInterval,
    TimeRestriction,
    Timetable,
    checked_instant,
)


@dataclass(frozen=True, slots=True)
class NullTimetable(Timetable):
    """Has no runs. As a DAG's schedule, write None."""

    description = "never, only by hand"
    can_be_scheduled = False

    @property
    def summary(self) -> str:
        return "None"

    def next_dagrun_info(
        self,
        *,
        last_automated_data_interval: DataInterval | None,
        restriction: TimeRestriction,
    ) -> DagRunInfo | None:
        return None

    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
        return DataInterval.exact(checked_instant(run_after, "run_after"))
