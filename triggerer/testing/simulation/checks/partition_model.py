"""Which runs partition keys ask for: a plain account of docs/partitions.md, for the few keys that a seed emits.

It shares no code with `triggerer.domain.partitions` or the scheduler.
"""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

MONTHS: Final = {
    "2025-Q4": ("2025-10", "2025-11", "2025-12"),
    "2026-Q1": ("2026-01", "2026-02", "2026-03"),
}
REGIONS: Final = ("eu", "us")
AFTER_QUARTER: Final = timedelta(minutes=80)
AFTER_FIRST: Final = timedelta(minutes=10)
AFTER_HOUR: Final = timedelta(minutes=20)
_ENDS: Final = {
    "2025-Q4": datetime(2026, 1, 1, tzinfo=UTC),
    "2026-Q1": datetime(2026, 4, 1, tzinfo=UTC),
}
"""A seed begins when the first quarter ends, and is over long before the second does."""
_LAST: Final = (*REGIONS, "else", None)
KEYS: Final = (*MONTHS, *(one for months in MONTHS.values() for one in months), *_LAST)
"""What events are emitted with; None: without a key."""
MINUTE_FORMAT: Final = "%Y-%m-%dT%H:%M"
"""Of the keys that timetables give."""
_MINUTE: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d")


@dataclass(frozen=True, slots=True)
class Arrival:
    """An event that is there for the run of a key."""

    asset: str
    key: str
    """Its own."""
    at: datetime


@dataclass(frozen=True, slots=True)
class Keyed:
    """What makes a DAG's keys due: an expression, and a mapper for each of its assets."""

    needs: str
    """`a`, `a & b` or `a | b`."""
    mappers: tuple[str, str]
    """Of `a` and of `b`: `same`; `all`, `two` or `late` (months to quarters: all of them, two, or what is there some
    time after the quarter); `regions` (both of them, or one some time after the first event); `months` (a quarter to
    its months); `hour`, `hour two` or `hour late` (minutes to hours: any of them, two, or what is there some time after
    the hour)."""

    @property
    def assets(self) -> tuple[str, ...]:
        return ("a",) if self.needs == "a" else ("a", "b")

    def keys_of(self, asset: str, key: str | None) -> frozenset[str]:
        """The runs that an event is for; none: it is refused."""
        if key is None or asset not in self.assets:
            return frozenset()
        match self._mapper(asset):
            case "same":
                return frozenset({key})
            case "regions":
                return frozenset({"world"})
            case "months":
                return frozenset(MONTHS.get(key, ()))
            case "hour" | "hour two" | "hour late":
                return frozenset({_hour_of(key)} if _MINUTE.fullmatch(key) else ())
        return frozenset(quarter for quarter, months in MONTHS.items() if key in months)

    def is_due(self, key: str, there: AbstractSet[Arrival], at: datetime, *, has_run: bool) -> bool:
        """Whether the run of a key may start at that instant with the events that are there for it."""
        if has_run:
            return any(one.asset in self.assets for one in there)
        each = [self._has(asset, key, there, at) for asset in self.assets]
        return any(each) if self.needs == "a | b" else all(each)

    def _has(self, asset: str, key: str, there: AbstractSet[Arrival], at: datetime) -> bool:
        ours = [one for one in there if one.asset == asset]
        keys = {one.key for one in ours}
        match self._mapper(asset):
            case "all":
                return keys.issuperset(MONTHS.get(key, "?"))
            case "two":
                return len(keys & set(MONTHS.get(key, ()))) >= 2
            case "late":
                months = set(MONTHS.get(key, ()))
                return bool(months) and (
                    keys >= months or (bool(keys & months) and at >= _ENDS[key] + AFTER_QUARTER)
                )
            case "regions":
                here = keys.intersection(REGIONS)
                if not here or key != "world":
                    return False
                is_overdue = at >= min(one.at for one in ours) + AFTER_FIRST
                return len(here) == len(REGIONS) or is_overdue
            case "hour two":
                return len(keys) >= 2
            case "hour late":
                return bool(keys) and at >= _end_of_hour(key) + AFTER_HOUR
        return bool(ours)

    def _mapper(self, asset: str) -> str:
        return self.mappers[("a", "b").index(asset)]


def _hour_of(minute: str) -> str:
    return minute[: len("2026-01-01T00")]


def _end_of_hour(hour: str) -> datetime:
    return datetime.fromisoformat(f"{hour}:00+00:00") + timedelta(hours=1)
