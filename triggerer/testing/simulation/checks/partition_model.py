"""A model of docs/reference/partitions.md: the runs that a simulation must create for events with partition keys.

The model shares no code with `triggerer.domain.partitions` or the scheduler.
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
"""When each quarter ends. A seed begins at the end of 2025-Q4, and is over long before the end of 2026-Q1."""
_LAST: Final = (*REGIONS, "else", None)
KEYS: Final = (*MONTHS, *(one for months in MONTHS.values() for one in months), *_LAST)
"""The keys of emitted events; None for an event without a key."""
MINUTE_FORMAT: Final = "%Y-%m-%dT%H:%M"
"""The format of keys from timetables."""
_MINUTE: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d")


@dataclass(frozen=True, slots=True)
class Arrival:
    """An event that has arrived for the run of a key."""

    asset: str
    key: str
    """The event's own key."""
    at: datetime


@dataclass(frozen=True, slots=True)
class Keyed:
    """A schedule by partition keys: an expression, and a mapper for each asset."""

    needs: str
    """The expression of assets: `a`, `a & b` or `a | b`."""
    mappers: tuple[str, str]
    """The mappers of `a` and `b`.

    - `same`: a key to itself.
    - `all`: months to quarters. A quarter is due with all its months.
    - `two`: months to quarters. A quarter is due with two of its months.
    - `late`: months to quarters. A quarter is due with all its months, or some time after its end with one month.
    - `regions`: regions to `world`. `world` is due with both regions, or some time after the first event.
    - `months`: a quarter to its months.
    - `hour`: minutes to hours. An hour is due with one of its minutes.
    - `hour two`: minutes to hours. An hour is due with two of its minutes.
    - `hour late`: minutes to hours. An hour is due with one of its minutes, some time after the end of the hour.
    """

    @property
    def assets(self) -> tuple[str, ...]:
        return ("a",) if self.needs == "a" else ("a", "b")

    def keys_of(self, asset: str, key: str | None) -> frozenset[str]:
        """Return the keys of the runs that an event is for; empty if the event is refused."""
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

    def is_due(
        self, key: str, arrived: AbstractSet[Arrival], at: datetime, *, has_run: bool
    ) -> bool:
        """Whether a run of the key may start at the instant `at`, with the events that have arrived for the key.

        Args:
            has_run: True: the key has had a run before. Then one further event is enough.
        """
        if has_run:
            return any(one.asset in self.assets for one in arrived)
        each = [self._has(asset, key, arrived, at) for asset in self.assets]
        return any(each) if self.needs == "a | b" else all(each)

    def _has(self, asset: str, key: str, arrived: AbstractSet[Arrival], at: datetime) -> bool:
        ours = [one for one in arrived if one.asset == asset]
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
