"""Durations as timetables accept, store and show them: a `timedelta`, or seconds from JSON."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Final

from triggerer.errors import DagError

LONGEST: Final = timedelta(days=36_500)
"""The longest duration that a DAG may name. A longer duration would overflow timers, or instants computed from it."""


def checked_duration(value: object, what: str) -> timedelta:
    """Return a duration that is not negative.

    Raises:
        DagError: The value is negative, longer than `LONGEST`, or neither a `timedelta` nor a number of seconds.
    """
    value = from_seconds(value)
    if not isinstance(value, timedelta):
        raise DagError(f"{what} must be a timedelta, not {value!r}")
    if value < timedelta(0):
        raise DagError(f"{what} must not be negative, and {value!r} is")
    if value > LONGEST:
        raise DagError(f"{what} must be at most {LONGEST.days:,} days, and {value!r} is longer")
    return value


def from_seconds(value: object) -> object:
    """Return a number of seconds as a `timedelta`. Return other values, and numbers that are too large, unchanged."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            return timedelta(seconds=value)
    return value


def checked_interval(value: object) -> timedelta:
    """Return the length of a data interval. Zero is allowed: the run then covers one moment."""
    return checked_duration(value, "interval")


def checked_delta(value: object) -> timedelta:
    """Return the time between runs, which must be above zero.

    Raises:
        DagError: The value is no `timedelta` above zero.
    """
    delta = checked_duration(value, "the time between runs")
    if not delta:
        raise DagError("the time between runs must be above zero")
    return delta


def duration_text(value: timedelta) -> str:
    """Return the duration for people: "1 day 6 hours"."""
    rest = value.total_seconds()
    parts = []
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        count, rest = divmod(rest, length)
        if count:
            parts.append(f"{count:.0f} {unit}{'' if count == 1 else 's'}")
    if rest or not parts:
        parts.append(f"{rest:g} second{'' if rest == 1 else 's'}")
    return " ".join(parts)
