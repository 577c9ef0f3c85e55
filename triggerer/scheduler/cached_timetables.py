"""Timetables that cache their answers, because `triggerer plan` asks for the same run at each event that it replays."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from triggerer.domain.schedules import OnBoth, OnEither, OnTime, Schedule
from triggerer.domain.timetables import DagRunInfo, DataInterval, TimeRestriction, Timetable
from triggerer.domain.timetables.ticks import HasTicks


def with_cached_answers(schedule: Schedule | None) -> Schedule | None:
    """Return the schedule with a caching timetable, if its timetable lists fixed instants (`HasTicks`), as cron does.

    Other timetables may depend on the clock, so their schedules are returned unchanged.
    """
    if isinstance(schedule, OnTime | OnEither | OnBoth) and isinstance(
        schedule.timetable, HasTicks
    ):
        return replace(schedule, timetable=CachedTimetable(schedule.timetable))
    return schedule


class CachedTimetable(Timetable):
    """Asks the real timetable only once for the run that follows a given run, and then repeats the answer.

    Use it only with `catchup=True` and a start date. Then the next run depends only on the last run, not on the clock.
    """

    def __init__(self, timetable: HasTicks) -> None:
        self._timetable = timetable
        self._answers: dict[tuple[DataInterval | None, TimeRestriction], DagRunInfo | None] = {}
        self.active_runs_limit = timetable.active_runs_limit

    def next_dagrun_info(
        self,
        *,
        last_automated_data_interval: DataInterval | None,
        restriction: TimeRestriction,
    ) -> DagRunInfo | None:
        asked = (last_automated_data_interval, restriction)
        if asked not in self._answers:
            self._answers[asked] = self._timetable.next_dagrun_info(
                last_automated_data_interval=last_automated_data_interval, restriction=restriction
            )
        return self._answers[asked]

    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
        return self._timetable.infer_manual_data_interval(run_after=run_after)

    def partition_key(self, interval: DataInterval) -> str | None:
        return self._timetable.partition_key(interval)
