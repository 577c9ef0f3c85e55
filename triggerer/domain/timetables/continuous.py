"""A timetable whose runs follow one another without a pause."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from triggerer.domain.timetables.base import (
    DagRunInfo,
    DataInterval,
    TimeRestriction,
    Timetable,
    checked_instant,
    in_utc,
)
from triggerer.domain.timetables.clock import now


@dataclass(frozen=True, slots=True)
class ContinuousTimetable(Timetable):
    """Starts a run as soon as the last run has ended. As a DAG's schedule, write `@continuous`.

    The data interval is the time since the end of the last run's interval.
    """

    description = "as often as possible, one run at a time"
    active_runs_limit = 1

    @property
    def summary(self) -> str:
        return "@continuous"

    def next_dagrun_info(
        self,
        *,
        last_automated_data_interval: DataInterval | None,
        restriction: TimeRestriction,
    ) -> DagRunInfo | None:
        last, restriction = in_utc(last_automated_data_interval, restriction)
        moment = now()
        earliest = restriction.earliest or moment
        if last is None:
            start, end = earliest, max(earliest, moment)
        elif last.end > moment:  # the DAG's start is still in the future
            start, end = earliest, earliest + (last.end - last.start)
        else:
            start, end = last.end, moment
        if restriction.latest is not None and end > restriction.latest:
            return None
        return DagRunInfo.interval(start, end)

    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
        return DataInterval.exact(checked_instant(run_after, "run_after"))
