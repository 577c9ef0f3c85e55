"""The instants that a cron expression names in a time zone.

croniter finds the dates of an expression: local times without a time zone. This module turns the dates into instants.
When clocks change, a date may occur twice, or may be skipped. The rules are Airflow's, except where
Airflow errs (`docs/reference/timetables.md` lists the differences):

- If the field of hours is `*`, a date that occurs twice gives two instants. A skipped date gives none.
- Otherwise, a date that occurs twice gives only the later instant. All skipped dates together give one instant: the
  first of them, moved by the length of the gap. So "02:30 each day" always runs once a day.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from croniter import CroniterBadDateError, croniter

from triggerer.domain.timetables.zones import Zone
from triggerer.errors import DagError

PRESETS: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@quarterly": "0 0 1 */3 *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
# Longer than any clock change: Samoa once skipped a whole day.
_A_DAY_AND_MORE = timedelta(hours=26)
# Dates at which searches begin. croniter gives up a search after 50 years. From these three dates, the searches reach
# every year that an expression may name.
_PROBES = (datetime(1970, 1, 1), datetime(2010, 1, 1), datetime(2050, 1, 1))  # noqa: DTZ001
# A search must begin between these dates. Otherwise croniter could fail at the ends of the calendar: years 1 and 9999.
_FIRST, _LAST = datetime(60, 1, 1), datetime(9900, 1, 1)  # noqa: DTZ001
_RANDOM = re.compile(r"\br\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Cron:
    """The instants of an expression in a zone.

    Raises:
        DagError: croniter refuses the expression, or the expression names no date.
    """

    expression: str
    zone: Zone
    _parsed: croniter = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str):
            raise DagError(f"a cron expression is a string, not {self.expression!r}")
        given = self.expression.strip()
        resolved = PRESETS.get(given.lower(), given)
        object.__setattr__(self, "expression", resolved)
        object.__setattr__(self, "_parsed", _parsed(resolved))

    def after(self, moment: datetime) -> datetime | None:
        """Return the first instant after `moment`, in UTC.

        None: no instant lies in the next 50 years, or `moment` is before `_FIRST` or after `_LAST`.
        """
        asked = _naive(moment)
        if not _FIRST <= asked <= _LAST:
            return None
        best: datetime | None = None
        for date in self._dates_after(asked + self._offsets_around(asked)[0]):
            for instant in self._instants(date):
                if instant > asked and (best is None or instant < best):
                    best = instant
            if best is not None and date - self._offsets_around(best)[1] >= best:
                break  # the instants of later dates are later
        return _aware(best)

    def before(self, moment: datetime) -> datetime | None:
        """Return the last instant before `moment`, in UTC.

        None: no instant lies in the last 50 years, or `moment` is before `_FIRST` or after `_LAST`.
        """
        asked = _naive(moment)
        if not _FIRST <= asked <= _LAST:
            return None
        best: datetime | None = None
        for date in self._dates_before(asked + self._offsets_around(asked)[1]):
            for instant in self._instants(date):
                if instant < asked and (best is None or instant > best):
                    best = instant
            if best is not None and date - self._offsets_around(best)[0] <= best:
                break  # the instants of earlier dates are earlier
        return _aware(best)

    def at_or_after(self, moment: datetime) -> datetime | None:
        """Return `moment` if it is one of the instants, otherwise the first after it."""
        return moment if self.matches(moment) else self.after(moment)

    def at_or_before(self, moment: datetime) -> datetime | None:
        """Return `moment` if it is one of the instants, otherwise the last before it."""
        return moment if self.matches(moment) else self.before(moment)

    def matches(self, moment: datetime) -> bool:
        """Return whether `moment` is one of the instants."""
        return self.after(moment - timedelta(microseconds=1)) == moment

    def _instants(self, date: datetime) -> tuple[datetime, ...]:
        """Return the instants that a date of the expression names: none, one or two naive UTC datetimes."""
        first, second = self._offset(date, fold=0), self._offset(date, fold=1)
        if first == second:
            return (date - first,)
        if self._parsed.expanded[1] == ["*"]:
            return (date - first, date - second) if first > second else ()
        if first > second:
            return (date - second,)
        return (date - first,) if self._is_first_left_out(date, second - first) else ()

    def _is_first_left_out(self, date: datetime, shift: timedelta) -> bool:
        """Return whether `date`, which the clock skips, is the expression's first date in the skipped time."""
        earlier = next(self._dates_before(date), None)
        if earlier is None or date - earlier >= shift:
            return True
        return self._offset(earlier, fold=0) == self._offset(earlier, fold=1)

    def _offset(self, date: datetime, *, fold: int) -> timedelta:
        return _offset_of(date.replace(tzinfo=self.zone, fold=fold))

    def _offset_at(self, instant: datetime) -> timedelta:
        return _offset_of(instant.replace(tzinfo=UTC).astimezone(self.zone))

    def _offsets_around(self, instant: datetime) -> tuple[timedelta, timedelta]:
        """Return the least and the greatest UTC offset of the zone near the instant.

        The offsets differ only near a clock change: up to one hour before or after a change of one hour.
        """
        if self.zone is UTC:
            return timedelta(0), timedelta(0)
        before = self._offset_at(instant - _A_DAY_AND_MORE)
        after = self._offset_at(instant + _A_DAY_AND_MORE)
        if before != after:
            shift = abs(after - before)
            before, after = self._offset_at(instant - shift), self._offset_at(instant + shift)
        return min(before, after), max(before, after)

    def _dates_after(self, date: datetime) -> Iterator[datetime]:
        dates = self._from(date)
        try:
            while True:
                yield dates.get_next(datetime)
        except CroniterBadDateError:
            return

    def _dates_before(self, date: datetime) -> Iterator[datetime]:
        dates = self._from(date)
        try:
            while True:
                yield dates.get_prev(datetime)
        except CroniterBadDateError:
            return

    def _from(self, date: datetime) -> croniter:
        # Copy the parsed expression: croniter stores its present date in the object, and several threads use the
        # timetable.
        dates = copy(self._parsed)
        dates.set_current(date)
        return dates


@lru_cache(maxsize=4096)
def _parsed(expression: str) -> croniter:
    if _RANDOM.search(expression):
        raise DagError(f"{expression!r}: R would name other dates each time the expression is read")
    try:
        parsed = croniter(expression, _PROBES[0])
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise DagError(
            f"{expression!r} is no cron expression: {error}",
            hint=f"five or six fields, or one of {', '.join(PRESETS)}",
        ) from error
    if not any(_has_date(parsed, probe) for probe in _PROBES):
        raise DagError(f"{expression!r} names no date at all")
    return parsed


def _has_date(parsed: croniter, start: datetime) -> bool:
    try:
        copy(parsed).get_next(datetime, start_time=start)
    except CroniterBadDateError:
        return False
    return True


def _offset_of(aware: datetime) -> timedelta:
    offset = aware.utcoffset()
    assert offset is not None
    return offset


def _naive(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(tzinfo=None)


def _aware(instant: datetime | None) -> datetime | None:
    return None if instant is None else instant.replace(tzinfo=UTC)
