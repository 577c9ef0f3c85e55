"""Consecutive data intervals of a fixed length."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from triggerer.domain.timetables._intervals import next_interval
from triggerer.domain.timetables.base import (
    DagRunInfo,
    DataInterval,
    TimeRestriction,
    Timetable,
    checked_instant,
    in_utc,
)
from triggerer.domain.timetables.clock import now
from triggerer.domain.timetables.delta.durations import checked_delta, duration_text

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class DeltaDataIntervalTimetable(Timetable):
    """Consecutive data intervals of the length `delta`, and a run at the end of each interval.

    - With catch-up, the intervals begin at the DAG's start. A DAG without a start gets no first run.
    - Without catch-up, the intervals are counted from 1970. The first run covers the last interval that has ended.

    Raises:
        DagError: `delta` is not above zero.
    """

    delta: timedelta

    def __post_init__(self) -> None:
        object.__setattr__(self, "delta", checked_delta(self.delta))

    @property
    def description(self) -> str:  # type: ignore[override]
        return f"every {duration_text(self.delta)}, for the time since the previous instant"

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
        return next_interval(
            self,
            last,
            earliest=restriction.earliest,
            latest=restriction.latest,
            over=None if restriction.catchup else self._start_of_last,
        )

    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
        run_after = checked_instant(run_after, "run_after")
        return DataInterval(run_after - self.delta, run_after)

    def serialize(self) -> dict[str, Any]:
        return {"delta": self.delta.total_seconds()}

    # The methods of `Bounds`

    def after(self, moment: datetime) -> datetime:
        """Return the end of the interval that starts at `moment`."""
        return moment + self.delta

    def at_or_after(self, moment: datetime) -> datetime:
        """Return `moment`, because an interval may start at any time."""
        return moment

    def at_or_before(self, moment: datetime) -> datetime:
        """Return `moment`, because an interval may start at any time."""
        return moment

    def _start_of_last(self) -> datetime:
        moment = now()
        return moment - (moment - _EPOCH) % self.delta - self.delta
