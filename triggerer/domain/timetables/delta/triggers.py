"""Runs with a fixed length of time between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from triggerer.domain.timetables._triggers import next_tick
from triggerer.domain.timetables.base import (
    DagRunInfo,
    DataInterval,
    TimeRestriction,
    Timetable,
    checked_instant,
    in_utc,
)
from triggerer.domain.timetables.clock import now
from triggerer.domain.timetables.delta.durations import (
    checked_delta,
    checked_interval,
    duration_text,
)


@dataclass(frozen=True, slots=True)
class DeltaTriggerTimetable(Timetable):
    """A run at the DAG's start, or at once if it has no start. Each further run comes `delta` after the run before it.

    `DAG(schedule=timedelta(hours=1))` means this timetable, as in Airflow 3. Without catch-up, one run replaces all
    runs that were missed, for instance during a pause. The run is due at once, and `delta` counts from this run.

    Args:
        interval: The length of the data interval before each run.
    Raises:
        DagError: `delta` is not above zero.
    """

    delta: timedelta
    interval: timedelta = field(kw_only=True, default=timedelta(0))

    def __post_init__(self) -> None:
        object.__setattr__(self, "delta", checked_delta(self.delta))
        object.__setattr__(self, "interval", checked_interval(self.interval))

    @property
    def description(self) -> str:  # type: ignore[override]
        return f"every {duration_text(self.delta)}"

    @property
    def summary(self) -> str:
        return str(self.delta)

    def next_dagrun_info(
        self,
        *,
        last_automated_data_interval: DataInterval | None,
        restriction: TimeRestriction,
    ) -> DagRunInfo | None:
        last, restriction = in_utc(last_automated_data_interval, restriction)
        return next_tick(self, last, restriction, first=now, interval=self.interval)

    def restriction_between(self, start: datetime, end: datetime) -> TimeRestriction:
        return TimeRestriction(start, end + self.interval, catchup=True)

    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
        run_after = checked_instant(run_after, "run_after")
        return DataInterval(run_after - self.interval, run_after)

    def serialize(self) -> dict[str, Any]:
        return {"delta": self.delta.total_seconds(), "interval": self.interval.total_seconds()}

    # The methods of `Ticks`

    def after(self, moment: datetime) -> datetime:
        """Return the tick that follows a tick at `moment`."""
        return moment + self.delta

    def at_or_after(self, moment: datetime) -> datetime:
        """Return `moment`, because the first tick may be at any time."""
        return moment

    def at_or_before(self, moment: datetime) -> datetime:
        """Return `moment`, because the first tick may be at any time."""
        return moment
