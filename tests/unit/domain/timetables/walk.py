"""When a cron expression fires in a zone, found by checking each minute on the zone's clock.

This walk uses neither croniter nor `triggerer`, so it is an independent check.
"""

from calendar import monthrange
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MONTHS = ("", "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


@dataclass(frozen=True)
class Expression:
    """Five fields, read in the plain way: lists, ranges, steps, names, `L`, `W`, `#`."""

    text: str

    def __post_init__(self) -> None:
        minute, hour, day, month, weekday = self.text.split()
        self.__dict__.update(
            minutes=_numbers(minute, 0, 59),
            hours=_numbers(hour, 0, 23),
            months=_numbers(month, 1, 12, _MONTHS),
            day=day,
            weekday=weekday.lower(),
            days=set() if day == "L" or "W" in day else _numbers(day, 1, 31),
            weekdays=set() if "#" in weekday or weekday[0] == "L" else {n % 7 for n in _numbers(weekday, 0, 7, _DAYS)},
        )  # fmt: skip

    def names_day(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        free_day, free_weekday = len(self.days) == 31, len(self.weekdays) == 7
        if free_day or free_weekday:
            return (free_day or self._by_day(day)) and (free_weekday or self._by_weekday(day))
        return self._by_day(day) or self._by_weekday(day)

    def _by_day(self, day: date) -> bool:
        last = monthrange(day.year, day.month)[1]
        if self.day == "L":
            return day.day == last
        if "W" in self.day:
            target = date(day.year, day.month, min(int(self.day.strip("W")), last))
            month = [target + timedelta(days=n) for n in (0, -1, 1, 2, -2)]
            nearest = [one for one in month if one.month == day.month and one.weekday() < 5]
            return day == nearest[0]
        return day.day in self.days

    def _by_weekday(self, day: date) -> bool:
        sunday_first = day.isoweekday() % 7
        if "#" in self.weekday:
            name, nth = self.weekday.split("#")
            return sunday_first == _number(name, _DAYS) and (day.day + 6) // 7 == int(nth)
        if self.weekday[0] == "l":
            return sunday_first == int(self.weekday[1]) and (day + timedelta(7)).month != day.month
        return sunday_first in self.weekdays

    def names(self, local: datetime) -> bool:
        return (
            local.minute in self.minutes
            and local.hour in self.hours
            and self.names_day(local.date())
        )


def fires(text: str, zone: str, start: datetime, end: datetime) -> list[datetime]:
    """Return the instants from `start` to `end` (UTC minutes, both included), as docs/reference/timetables.md rules."""
    return fires_of([text], zone, start, end)[0]


def fires_of(texts: list[str], zone: str, start: datetime, end: datetime) -> list[list[datetime]]:
    """Return the instants of several expressions, in one walk."""
    expressions = [Expression(text) for text in texts]
    found: list[dict[datetime, datetime]] = [{} for _ in texts]
    repeated: list[list[datetime]] = [[] for _ in texts]
    margin = timedelta(hours=25)
    previous: datetime | None = None
    for instant, local in _clock(zone, start - margin, end + margin):
        for expression, seen, again in zip(expressions, found, repeated, strict=True):
            if previous is not None and local - previous > MINUTE and len(expression.hours) < 24:
                missed = _first_named(expression, previous + MINUTE, local)
                if missed is not None:
                    late = instant + (missed - (previous + MINUTE))
                    seen[missed] = late
            if expression.names(local):
                if local in seen and len(expression.hours) == 24:
                    again.append(seen[local])
                seen[local] = instant
        previous = local
    return [
        sorted({one for one in (*seen.values(), *again) if start <= one <= end})
        for seen, again in zip(found, repeated, strict=True)
    ]


def _clock(zone: str, start: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
    info, instant = ZoneInfo(zone), start
    while instant <= end:
        yield instant, instant.astimezone(info).replace(tzinfo=None)
        instant += MINUTE


def _first_named(expression: Expression, local: datetime, end: datetime) -> datetime | None:
    while local < end:
        if expression.names(local):
            return local
        local += MINUTE
    return None


def _numbers(field: str, low: int, high: int, names: tuple[str, ...] = ()) -> set[int]:
    found: set[int] = set()
    for part in field.lower().split(","):
        span, _, step = part.partition("/")
        if span == "*":
            first, last = low, high if high != 7 else 6
        elif "-" in span:
            first, last = (_number(one, names) for one in span.split("-"))
        else:
            first = _number(span, names)
            last = high if step else first
        found.update(range(first, last + 1, int(step or 1)))
    return found


def _number(text: str, names: tuple[str, ...]) -> int:
    return names.index(text) if text in names else int(text)
