"""A timetable with a single run."""

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
class OnceTimetable(Timetable):
    """One run, at the DAG's start, or now if the DAG has no start. As a DAG's schedule, write `@once`."""

    description = "once, as soon as possible"

    @property
    def summary(self) -> str:
        return "@once"

    def next_dagrun_info(
        self,
        *,
        last_automated_data_interval: DataInterval | None,
        restriction: TimeRestriction,
    ) -> DagRunInfo | None:
        last, restriction = in_utc(last_automated_data_interval, restriction)
        if last is not None:
            return None
        # Without catch-up, missed runs are left out, but never the only run.
        run_after = now() if restriction.earliest is None else restriction.earliest
        if restriction.latest is not None and run_after > restriction.latest:
            return None
        return DagRunInfo.exact(run_after)

    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
        return DataInterval.exact(checked_instant(run_after, "run_after"))
