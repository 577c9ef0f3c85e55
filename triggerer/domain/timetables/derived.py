"""The base of timetables that change the runs of another timetable."""

from __future__ import annotations

from datetime import datetime

from triggerer.domain.timetables.base import DagRunInfo, DataInterval, TimeRestriction, Timetable
from triggerer.errors import DagError


class DerivedTimetable(Timetable):
    """Has the runs of `timetable`. A subclass changes some of their attributes."""

    __slots__ = ()

    timetable: Timetable

    @property
    def can_be_scheduled(self) -> bool:  # type: ignore[override]
        return self.timetable.can_be_scheduled

    @property
    def active_runs_limit(self) -> int | None:  # type: ignore[override]
        return self.timetable.active_runs_limit

    @property
    def partitioned(self) -> bool:  # type: ignore[override]
        return self.timetable.partitioned

    def partition_key(self, interval: DataInterval) -> str | None:
        return self.timetable.partition_key(interval)

    def to_partition_date(self, key: str) -> datetime | None:
        return self.timetable.to_partition_date(key)

    def restriction_between(self, start: datetime, end: datetime) -> TimeRestriction:
        return self.timetable.restriction_between(start, end)

    def next_dagrun_info(
        self,
        *,
        last_automated_data_interval: DataInterval | None,
        restriction: TimeRestriction,
    ) -> DagRunInfo | None:
        info = self.timetable.next_dagrun_info(
            last_automated_data_interval=last_automated_data_interval, restriction=restriction
        )
        return info and self.derived(info)

    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
        return self.derived_interval(self.timetable.infer_manual_data_interval(run_after=run_after))

    def derived(self, info: DagRunInfo) -> DagRunInfo:
        """Return the run of this timetable for a run of `timetable`."""
        return DagRunInfo(info.run_after, self.derived_interval(info.data_interval))

    def derived_interval(self, interval: DataInterval) -> DataInterval:
        """Return the data interval of this timetable for a data interval of `timetable`."""
        return interval


def check_timetable(value: object, owner: str) -> None:
    """Check that a value is a timetable.

    Raises:
        DagError: The value is no timetable. The message names `owner`.
    """
    if not isinstance(value, Timetable):
        raise DagError(f"{owner} takes a timetable, not {value!r}")
