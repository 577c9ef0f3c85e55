"""Timetables that change another timetable's runs: the runs start later, or have another data interval."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self

from triggerer.domain.timetables._intervals import next_interval, start_of_last
from triggerer.domain.timetables.base import (
    DagRunInfo,
    DataInterval,
    TimeRestriction,
    Timetable,
    checked_instant,
    in_utc,
)
from triggerer.domain.timetables.clock import clock_set_back, now
from triggerer.domain.timetables.delta.durations import (
    checked_delta,
    checked_duration,
    duration_text,
)
from triggerer.domain.timetables.derived import DerivedTimetable, check_timetable
from triggerer.domain.timetables.serialization import timetable_from_json, timetable_to_json
from triggerer.domain.timetables.ticks import (
    HasTicks,
    checked_ticks,
    refuse_keys,
    ticks_from_json,
)


@dataclass(frozen=True, slots=True)
class Delayed(DerivedTimetable):
    """Starts each run of a timetable later by `delay`, for data that comes late. The data interval does not change."""

    timetable: Timetable
    delay: timedelta

    def __post_init__(self) -> None:
        check_timetable(self.timetable, "Delayed")
        object.__setattr__(self, "delay", checked_duration(self.delay, "delay"))

    @property
    def description(self) -> str:  # type: ignore[override]
        return f"{self.timetable.description}, {duration_text(self.delay)} later"

    @property
    def summary(self) -> str:
        return f"{self.timetable.summary} + {self.delay}"

    def next_dagrun_info(
        self,
        *,
        last_automated_data_interval: DataInterval | None,
        restriction: TimeRestriction,
    ) -> DagRunInfo | None:
        # Without catch-up, `timetable` skips all past runs except the newest. A delayed run is past only once its
        # delayed start has passed. So set the clock of `timetable` back by the delay, but at most to the end of the
        # last run's interval.
        last, by = last_automated_data_interval, timedelta()
        if last is not None and not restriction.catchup:
            by = min(self.delay, max(now() - last.end, timedelta()))
        with clock_set_back(by):
            return DerivedTimetable.next_dagrun_info(
                self, last_automated_data_interval=last, restriction=restriction
            )

    def derived(self, info: DagRunInfo) -> DagRunInfo:
        return DagRunInfo(info.run_after + self.delay, info.data_interval)

    def serialize(self) -> dict[str, Any]:
        return {
            "timetable": timetable_to_json(self.timetable),
            "delay": self.delay.total_seconds(),
        }

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        return cls(timetable_from_json(data["timetable"]), data["delay"])


@dataclass(frozen=True, slots=True)
class RollingWindow(DerivedTimetable):
    """Moves the start of each data interval, so that its length is `window`, such as 30 days.

    The end of the interval and the time of the run do not change.
    """

    timetable: Timetable
    window: timedelta

    def __post_init__(self) -> None:
        check_timetable(self.timetable, "RollingWindow")
        refuse_keys(self.timetable, "RollingWindow")
        object.__setattr__(self, "window", checked_delta(self.window))

    @property
    def description(self) -> str:  # type: ignore[override]
        return f"{self.timetable.description}, for {duration_text(self.window)}"

    @property
    def summary(self) -> str:
        return f"{self.timetable.summary} over {self.window}"

    def derived_interval(self, interval: DataInterval) -> DataInterval:
        return DataInterval(interval.end - self.window, interval.end)

    def restriction_between(self, start: datetime, end: datetime) -> TimeRestriction:
        # A run's logical date is the end of its interval in `timetable`, minus `window`. So allow intervals that end
        # between `start + window` and `end + window`. If intervals are longer than `window`, the first of them may
        # start before `start`, but not before `earliest`.
        earliest = self.timetable.infer_manual_data_interval(run_after=start + self.window).start
        return self.timetable.restriction_between(min(start, earliest), end + self.window)

    def serialize(self) -> dict[str, Any]:
        return {
            "timetable": timetable_to_json(self.timetable),
            "window": self.window.total_seconds(),
        }

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        return cls(timetable_from_json(data["timetable"]), data["window"])


@dataclass(frozen=True, slots=True)
class Consecutive(HasTicks):
    """A run at each instant of a timetable, for the time since the previous instant.

    Like `CronDataIntervalTimetable`, but for any timetable with fixed instants.
    """

    timetable: HasTicks

    def __post_init__(self) -> None:
        checked_ticks(self.timetable, type(self).__name__)

    @property
    def description(self) -> str:  # type: ignore[override]
        return f"{self.timetable.description}, for the time since the previous instant"

    @property
    def summary(self) -> str:
        return self.timetable.summary

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
            over=None if restriction.catchup else lambda: start_of_last(self),
        )

    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
        run_after = checked_instant(run_after, "run_after")
        end = self.at_or_before(run_after)
        start = None if end is None else self.before(end)
        if end is None or start is None:
            return DataInterval.exact(run_after)
        return DataInterval(start, end)

    def after(self, moment: datetime) -> datetime | None:
        return self.timetable.after(moment)

    def before(self, moment: datetime) -> datetime | None:
        return self.timetable.before(moment)

    def serialize(self) -> dict[str, Any]:
        return {"timetable": timetable_to_json(self.timetable)}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        return cls(ticks_from_json(data["timetable"]))


class RollUp(Consecutive):
    """Like `Consecutive`, but one run covers all missed intervals together. No data is left out or repeated.

    Without catch-up, the first run covers the last interval that has ended. With catch-up, the first run covers all
    intervals since the DAG's start.
    """

    __slots__ = ()

    @property
    def description(self) -> str:  # type: ignore[override]
        return f"{self.timetable.description}, for the time since the last run"

    def next_dagrun_info(
        self,
        *,
        last_automated_data_interval: DataInterval | None,
        restriction: TimeRestriction,
    ) -> DagRunInfo | None:
        last = last_automated_data_interval
        first = super().next_dagrun_info(
            last_automated_data_interval=last,
            restriction=restriction if last is None else restriction._replace(catchup=True),
        )
        if first is None:
            return None
        start, end = first.data_interval
        # If the DAG had another schedule before, the last run's interval may overlap the new interval. So begin where
        # the last run's interval ended.
        if last is not None:
            start = max(start, last.end)
        return DagRunInfo.interval(start, max(end, self._last_end(restriction.latest) or end))

    def _last_end(self, latest: datetime | None) -> datetime | None:
        """Return the end of the last interval that has ended and did not start after `latest`; None: there is none."""
        end = self.at_or_before(now())
        if latest is None or end is None:
            return end
        started = self.at_or_before(latest)
        bound = None if started is None else self.after(started)
        return end if bound is None else min(end, bound)
