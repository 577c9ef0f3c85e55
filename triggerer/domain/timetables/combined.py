"""Timetables that combine others: all instants, the common instants, or one timetable's instants with exceptions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, tzinfo
from typing import Any, ClassVar, Final, Self

from triggerer.domain.timetables.delta.durations import checked_interval
from triggerer.domain.timetables.serialization import timetable_to_json
from triggerer.domain.timetables.ticks import (
    HasTicks,
    TickTimetable,
    checked_ticks,
    earliest_after,
    latest_before,
    ticks_from_json,
)
from triggerer.domain.timetables.zones import checked_zone, start_of_day, zone_to_json
from triggerer.errors import DagError

REACH: Final = 5_000
"""The most instants that one search for the next run examines before it gives up."""

_left: ContextVar[list[int] | None] = ContextVar("triggerer_instants_left", default=None)

_LEAST = timedelta(microseconds=1)

_Step = Callable[[HasTicks, datetime], "datetime | None"]


def _after(ticks: HasTicks, moment: datetime) -> datetime | None:
    return ticks.after(moment)


def _before(ticks: HasTicks, moment: datetime) -> datetime | None:
    return ticks.before(moment)


@dataclass(frozen=True, slots=True, init=False)
class _Several(TickTimetable):
    """Combines the instants of several timetables. The data intervals of these timetables are ignored.

    Args:
        interval: The length of the data interval before each run.
    Raises:
        DagError: No timetable is given, a timetable has partition keys or no fixed instants, or `interval` is negative.
    """

    timetables: tuple[HasTicks, ...]
    interval: timedelta = field(kw_only=True, default=timedelta(0))

    _joint: ClassVar[str]

    def __init__(self, *timetables: HasTicks, interval: timedelta = timedelta(0)) -> None:
        name = type(self).__name__
        if not timetables:
            raise DagError(f"{name} needs a timetable")
        object.__setattr__(
            self, "timetables", tuple(checked_ticks(one, name) for one in timetables)
        )
        object.__setattr__(self, "interval", checked_interval(interval))

    @property
    def description(self) -> str:  # type: ignore[override]
        return f", {self._joint} ".join(one.description for one in self.timetables)

    @property
    def summary(self) -> str:
        return f" {self._joint} ".join(one.summary for one in self.timetables)

    def serialize(self) -> dict[str, Any]:
        return {
            "timetables": [timetable_to_json(one) for one in self.timetables],
            "interval": self.interval.total_seconds(),
        }

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        return cls(*map(ticks_from_json, data["timetables"]), interval=data["interval"])


class AnyOf(_Several):
    """A run at each instant of any of the timetables. An instant that several timetables share makes one run."""

    __slots__ = ()
    _joint = "or"

    def after(self, moment: datetime) -> datetime | None:
        return earliest_after(self.timetables, moment)

    def before(self, moment: datetime) -> datetime | None:
        return latest_before(self.timetables, moment)


class AllOf(_Several):
    """A run at each instant that all timetables have in common. A search gives up after `REACH` tries."""

    __slots__ = ()
    _joint = "and"

    def after(self, moment: datetime) -> datetime | None:
        return self._meeting(moment, _after, max)

    def before(self, moment: datetime) -> datetime | None:
        return self._meeting(moment, _before, min)

    def _meeting(
        self, moment: datetime, step: _Step, farthest: Callable[..., datetime]
    ) -> datetime | None:
        """Return the next instant that all timetables share, in the direction of `step`.

        Each round asks all timetables for their next instant, and continues at the farthest of these instants. No
        nearer instant can be common to all timetables.
        """
        with _looking() as may_look:
            while may_look():
                found = [step(one, moment) for one in self.timetables]
                nexts = [one for one in found if one is not None]
                if len(nexts) < len(found):
                    return None
                there = farthest(nexts)
                if all(one.is_due_at(there) for one in self.timetables):
                    return there
                moment = there
        return None


@dataclass(frozen=True, slots=True)
class Except(TickTimetable):
    """A run at each instant of `timetable` that `without` does not have. A search gives up after `REACH` instants."""

    timetable: HasTicks
    without: HasTicks
    interval: timedelta = field(kw_only=True, default=timedelta(0))

    def __post_init__(self) -> None:
        checked_ticks(self.timetable, "Except")
        checked_ticks(self.without, "Except")
        object.__setattr__(self, "interval", checked_interval(self.interval))

    @property
    def description(self) -> str:  # type: ignore[override]
        return f"{self.timetable.description}, except {self.without.description}"

    @property
    def summary(self) -> str:
        return f"{self.timetable.summary} except {self.without.summary}"

    def after(self, moment: datetime) -> datetime | None:
        return _next_that(self.timetable, moment, _after, self._counts)

    def before(self, moment: datetime) -> datetime | None:
        return _next_that(self.timetable, moment, _before, self._counts)

    def serialize(self) -> dict[str, Any]:
        return {
            "timetable": timetable_to_json(self.timetable),
            "without": timetable_to_json(self.without),
            "interval": self.interval.total_seconds(),
        }

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        return cls(
            ticks_from_json(data["timetable"]),
            ticks_from_json(data["without"]),
            interval=data["interval"],
        )

    def _counts(self, moment: datetime) -> bool:
        return not self.without.is_due_at(moment)


@dataclass(frozen=True, slots=True, init=False)
class ExceptDays(TickTimetable):
    """A run at each instant of a timetable, except on some days, such as holidays."""

    timetable: HasTicks
    days: frozenset[date]
    timezone: tzinfo
    interval: timedelta

    def __init__(
        self,
        timetable: HasTicks,
        days: Iterable[date],
        *,
        timezone: tzinfo | str | int,
        interval: timedelta = timedelta(0),
    ) -> None:
        object.__setattr__(self, "timetable", checked_ticks(timetable, "ExceptDays"))
        object.__setattr__(self, "days", checked_days(days))
        object.__setattr__(self, "timezone", checked_zone(timezone))
        object.__setattr__(self, "interval", checked_interval(interval))

    @property
    def description(self) -> str:  # type: ignore[override]
        return f"{self.timetable.description}, except on {len(self.days)} days"

    @property
    def summary(self) -> str:
        return f"{self.timetable.summary} except {len(self.days)} days"

    def after(self, moment: datetime) -> datetime | None:
        while (found := self.timetable.after(moment)) is not None and self._is_left_out(found):
            # Skip the whole day at once: a cron of every second has 86,400 instants in it.
            moment = self._day(found)[1] - _LEAST
        return found

    def before(self, moment: datetime) -> datetime | None:
        while (found := self.timetable.before(moment)) is not None and self._is_left_out(found):
            moment = self._day(found)[0]
        return found

    def serialize(self) -> dict[str, Any]:
        return {
            "timetable": timetable_to_json(self.timetable),
            "days": [day.isoformat() for day in sorted(self.days)],
            "timezone": zone_to_json(checked_zone(self.timezone)),
            "interval": self.interval.total_seconds(),
        }

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        return cls(
            ticks_from_json(data["timetable"]),
            map(date.fromisoformat, data["days"]),
            timezone=data["timezone"],
            interval=data["interval"],
        )

    def _is_left_out(self, moment: datetime) -> bool:
        return moment.astimezone(self.timezone).date() in self.days

    def _day(self, moment: datetime) -> tuple[datetime, datetime]:
        """Return the first instants of the moment's day and of the next day."""
        day = moment.astimezone(self.timezone).date()
        return start_of_day(day, self.timezone), start_of_day(
            day + timedelta(days=1), self.timezone
        )


def checked_days(days: Iterable[date]) -> frozenset[date]:
    """Return the days as a set.

    Raises:
        DagError: A value is no date, or is a datetime.
    """
    found = frozenset(days)
    for day in found:
        if type(day) is not date:
            raise DagError(f"a day must be a datetime.date, not {day!r}")
    return found


def _next_that(
    ticks: HasTicks, moment: datetime, step: _Step, counts: Callable[[datetime], bool]
) -> datetime | None:
    with _looking() as may_look:
        while may_look():
            found = step(ticks, moment)
            if found is None or counts(found):
                return found
            moment = found
    return None


@contextmanager
def _looking() -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether a search may examine another instant. Nested searches share one limit."""
    left, token = _left.get(), None
    if left is None:
        left = [REACH]
        token = _left.set(left)

    def may_look() -> bool:
        left[0] -= 1
        return left[0] >= 0

    try:
        yield may_look
    finally:
        if token is not None:
            _left.reset(token)
