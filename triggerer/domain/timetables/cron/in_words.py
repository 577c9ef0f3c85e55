"""Describes a cron expression in a few words. If that is impossible, quotes the expression."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from triggerer.domain.timetables.cron.expression import Cron
from triggerer.domain.timetables.zones import zone_name

_DAYS: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_MONTHS: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_ORDINALS: Final = ("first", "second", "third", "fourth", "fifth")


class _TooManyWords(Exception):
    """A phrase would be longer than the expression."""


def describe_cron(cron: Cron) -> str:
    """Return a phrase for people: "at 06:00 from Monday to Friday (Europe/Paris)"."""
    zone = zone_name(cron.zone)
    try:
        minute, hour, day, month, weekday = cron.expression.lower().split()
        if day != "*" and weekday != "*":
            # If both a day of the month and a day of the week are given, a date needs to match only one of them. A
            # phrase for this would be too long.
            raise _TooManyWords
        words = [_time(minute, hour), _day(day), _weekday(weekday), _month(month)]
    except (_TooManyWords, ValueError, IndexError):
        return f"at the times of cron {cron.expression!r} ({zone})"
    return f"{' '.join(word for word in words if word)} ({zone})"


def _time(minute: str, hour: str) -> str:
    if found := re.fullmatch(r"\*/(\d+)", minute):
        if hour == "*" and 60 % int(found[1]) == 0:
            return f"every {found[1]} minutes"
        raise _TooManyWords
    if minute == "*":
        if hour == "*":
            return "every minute"
        raise _TooManyWords
    minutes = _numbers(minute)
    if hour == "*":
        if minutes == [0]:
            return "every hour"
        return f"every hour at {_joined(f':{one:02}' for one in minutes)}"
    if found := re.fullmatch(r"\*/(\d+)", hour):
        if minutes == [0] and 24 % int(found[1]) == 0:
            return f"every {found[1]} hours"
        raise _TooManyWords
    times = [f"{one:02}:{other:02}" for one in _numbers(hour) for other in minutes]
    if len(times) > 6:
        raise _TooManyWords
    return f"at {_joined(times)}"


def _day(day: str) -> str:
    if day == "*":
        return ""
    if day == "l":
        return "on the last day of the month"
    if found := re.fullmatch(r"(\d+)w", day):
        return f"on the weekday nearest to day {found[1]} of the month"
    days = _numbers(day)
    return f"on day{'s' if len(days) > 1 else ''} {_joined(map(str, days))} of the month"


def _weekday(weekday: str) -> str:
    if weekday == "*":
        return ""
    if found := re.fullmatch(r"(\w+)#([1-5])", weekday):
        return f"on the {_ORDINALS[int(found[2]) - 1]} {_named(found[1], _DAYS, 0)} of the month"
    if found := re.fullmatch(r"l([0-7])", weekday):
        return f"on the last {_named(found[1], _DAYS, 0)} of the month"
    if found := re.fullmatch(r"(\w+)-(\w+)", weekday):
        return f"from {_named(found[1], _DAYS, 0)} to {_named(found[2], _DAYS, 0)}"
    return f"on {_joined(_named(one, _DAYS, 0) for one in weekday.split(','))}"


def _month(month: str) -> str:
    if month == "*":
        return ""
    if found := re.fullmatch(r"\*/(\d+)", month):
        every = range(1, 13, int(found[1]))
        return f"in {_joined(_MONTHS[one - 1] for one in every)}"
    if found := re.fullmatch(r"(\w+)-(\w+)", month):
        return f"from {_named(found[1], _MONTHS, 1)} to {_named(found[2], _MONTHS, 1)}"
    return f"in {_joined(_named(one, _MONTHS, 1) for one in month.split(','))}"


def _named(text: str, names: tuple[str, ...], first: int) -> str:
    for name in names:
        if name[:3].lower() == text:
            return name
    return names[(int(text) - first) % len(names)]


def _numbers(field: str) -> list[int]:
    return sorted(map(int, field.split(",")))


def _joined(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
