"""Workdays: a run after each workday, and runs on some workdays of a month."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from itertools import count, islice
from typing import Any, Final, Literal, Self

from triggerer.domain.timetables.base import (
    DagRunInfo,
    DataInterval,
    TimeRestriction,
    checked_instant,
    in_utc,
)
from triggerer.domain.timetables.clock import now
from triggerer.domain.timetables.combined import checked_days
from triggerer.domain.timetables.ticks import HasTicks, TickTimetable
from triggerer.domain.timetables.zones import checked_zone, start_of_day, zone_name, zone_to_json
from triggerer.errors import DagError

MONDAY_TO_FRIDAY: Final = (0, 1, 2, 3, 4)
_DAY = timedelta(days=1)
# A search for a workday gives up after this number of days. No calendar has more than a year of holidays in a row.
_REACH = 400


@dataclass(frozen=True, slots=True, init=False)
class AfterWorkdayTimetable(HasTicks):
    """A run at midnight after each workday, for that day: the run for Friday is on Saturday at 00:00.

    With `CronDataIntervalTimetable("0 0 * * 1-5")` instead, the run for Friday would be on Monday. With catch-up, a DAG
    without a start date gets no first run.

    Args:
        workdays: Days of the week; Monday is 0.
        holidays: Days without work.
    Raises:
        DagError: An argument is invalid.
    """

    timezone: tzinfo
    workdays: frozenset[int]
    holidays: frozenset[date]

    def __init__(
        self,
        *,
        timezone: tzinfo | str | int,
        workdays: Iterable[int] = MONDAY_TO_FRIDAY,
        holidays: Iterable[date] = (),
    ) -> None:
        object.__setattr__(self, "timezone", checked_zone(timezone))
        object.__setattr__(self, "workdays", _checked_workdays(workdays))
        object.__setattr__(self, "holidays", checked_days(holidays))

    @property
    def description(self) -> str:  # type: ignore[override]
        return f"after each working day, for that day ({zone_name(checked_zone(self.timezone))})"

    @property
    def summary(self) -> str:
        return "after workdays"

    def next_dagrun_info(
        self,
        *,
        last_automated_data_interval: DataInterval | None,
        restriction: TimeRestriction,
    ) -> DagRunInfo | None:
        last, restriction = in_utc(last_automated_data_interval, restriction)
        starts = []
        if last is not None:
            starts.append(max(last.end, last.start + timedelta(microseconds=1)))
        if restriction.earliest is not None:
            starts.append(restriction.earliest)
        if not restriction.catchup and (over := self.before(now() + timedelta(microseconds=1))):
            starts.append(self._start(self._local_day(over - timedelta(microseconds=1))))
        if not starts:
            return None
        day = self._first_workday(max(starts))
        if day is None:
            return None
        start = self._start(day)
        if restriction.latest is not None and start > restriction.latest:
            return None
        return DagRunInfo.interval(start, self._start(day + _DAY))

    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
        run_after = checked_instant(run_after, "run_after")
        end = self.before(run_after + timedelta(microseconds=1))
        if end is None:
            return DataInterval.exact(run_after)
        return DataInterval(self._start(self._local_day(end - timedelta(microseconds=1))), end)

    def after(self, moment: datetime) -> datetime | None:
        """Return the first end of a workday after `moment`; None: a year without workdays follows."""
        day = self._local_day(moment)
        ends = (self._start(one + _DAY) for one in _days(day, 1) if self._is_workday(one))
        return next(ends, None)

    def before(self, moment: datetime) -> datetime | None:
        """Return the last end of a workday before `moment`; None: a year without workdays lies before it."""
        day = self._local_day(moment)
        ends = (self._start(one + _DAY) for one in _days(day, -1) if self._is_workday(one))
        return next((end for end in ends if end < moment), None)

    def serialize(self) -> dict[str, Any]:
        return {
            "timezone": zone_to_json(checked_zone(self.timezone)),
            "workdays": sorted(self.workdays),
            "holidays": [day.isoformat() for day in sorted(self.holidays)],
        }

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        return cls(
            timezone=data["timezone"],
            workdays=data["workdays"],
            holidays=map(date.fromisoformat, data["holidays"]),
        )

    def _first_workday(self, moment: datetime) -> date | None:
        """Return the first workday that starts at `moment` or later."""
        days = _days(self._local_day(moment), 1)
        return next(
            (day for day in days if self._is_workday(day) and self._start(day) >= moment), None
        )

    def _is_workday(self, day: date) -> bool:
        return day.weekday() in self.workdays and day not in self.holidays

    def _local_day(self, moment: datetime) -> date:
        return moment.astimezone(self.timezone).date()

    def _start(self, day: date) -> datetime:
        return start_of_day(day, self.timezone)


@dataclass(frozen=True, slots=True, init=False)
class WorkdaysOfMonthTimetable(TickTimetable):
    """A run on given days of each month, such as the 15th and the last.

    If such a day is no workday, the run is on a workday near it. Put `Consecutive(...)` around this timetable if each
    run must cover the time since the previous run.

    Args:
        days: Days of the month from 1; -1 is the last day, -2 the day before it. If a month lacks the day, a positive
            number means the month's last day, and a negative number its first day. In April, 31 is the 30th, and -31
            is the 1st.
        at: The time of day.
        roll: "before" moves a run to the last workday before the day; "after", to the first workday after it.
    Raises:
        DagError: An argument is invalid.
    """

    days: tuple[int, ...]
    timezone: tzinfo
    at: time
    roll: Literal["before", "after"]
    workdays: frozenset[int]
    holidays: frozenset[date]

    def __init__(
        self,
        *days: int,
        timezone: tzinfo | str | int,
        at: time = time(0),
        roll: Literal["before", "after"] = "before",
        workdays: Iterable[int] = MONDAY_TO_FRIDAY,
        holidays: Iterable[date] = (),
    ) -> None:
        if not days or any(type(day) is not int or day == 0 or abs(day) > 31 for day in days):
            raise DagError(f"days of a month are 1 to 31, or -1 to -31 from its end, not {days!r}")
        if roll not in ("before", "after"):
            raise DagError(f'roll is "before" or "after", not {roll!r}')
        object.__setattr__(self, "days", tuple(sorted(set(days))))
        object.__setattr__(self, "timezone", checked_zone(timezone))
        object.__setattr__(self, "at", _checked_time(at))
        object.__setattr__(self, "roll", roll)
        object.__setattr__(self, "workdays", _checked_workdays(workdays))
        object.__setattr__(self, "holidays", checked_days(holidays))

    @property
    def description(self) -> str:  # type: ignore[override]
        zone = zone_name(checked_zone(self.timezone))
        return f"on the days {self.summary} of each month at {self.at:%H:%M} ({zone})"

    @property
    def summary(self) -> str:
        days = ", ".join("last" if day == -1 else str(day) for day in self.days)
        return f"{days} or the workday {self.roll}"

    def after(self, moment: datetime) -> datetime | None:
        # A run may be moved across the end of a month, so look at the neighbouring months as well.
        for month in _months(self._month(moment) - 1, 1):
            if found := [one for one in self._instants(month) if one > moment]:
                following = [one for one in self._instants(month + 1) if one > moment]
                return min(found + following)
        return None

    def before(self, moment: datetime) -> datetime | None:
        for month in _months(self._month(moment) + 1, -1):
            if found := [one for one in self._instants(month) if one < moment]:
                earlier = [one for one in self._instants(month - 1) if one < moment]
                return max(found + earlier)
        return None

    def serialize(self) -> dict[str, Any]:
        return {
            "days": list(self.days),
            "timezone": zone_to_json(checked_zone(self.timezone)),
            "at": self.at.isoformat(),
            "roll": self.roll,
            "workdays": sorted(self.workdays),
            "holidays": [day.isoformat() for day in sorted(self.holidays)],
        }

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        return cls(
            *data["days"],
            timezone=data["timezone"],
            at=time.fromisoformat(data["at"]),
            roll=data["roll"],
            workdays=data["workdays"],
            holidays=map(date.fromisoformat, data["holidays"]),
        )

    def _month(self, moment: datetime) -> int:
        local = moment.astimezone(self.timezone)
        return local.year * 12 + local.month - 1

    def _instants(self, month: int) -> list[datetime]:
        first = date(month // 12, month % 12 + 1, 1)
        length = (date((month + 1) // 12, (month + 1) % 12 + 1, 1) - first).days
        found = []
        for day in self.days:
            number = max(length + day, 0) if day < 0 else min(day, length) - 1
            moved = _days(first + number * _DAY, -1 if self.roll == "before" else 1)
            workday = next((one for one in moved if self._is_workday(one)), None)
            if workday is not None:
                found.append(
                    datetime.combine(workday, self.at, tzinfo=self.timezone).astimezone(UTC)
                )
        return found

    def _is_workday(self, day: date) -> bool:
        return day.weekday() in self.workdays and day not in self.holidays


def _checked_time(value: object) -> time:
    if not isinstance(value, time) or value.tzinfo is not None:
        raise DagError(f"at must be a datetime.time without a zone, not {value!r}")
    return value


def _checked_workdays(workdays: Iterable[int]) -> frozenset[int]:
    found = frozenset(workdays)
    if not found or not found <= set(range(7)):
        raise DagError(f"days of the week are 0 (Monday) to 6, not {sorted(found)!r}")
    return found


def _days(day: date, direction: Literal[1, -1]) -> Iterator[date]:
    return (day + direction * number * _DAY for number in range(_REACH))


def _months(month: int, direction: Literal[1, -1]) -> Iterator[int]:
    return islice(count(month, direction), 30)
