"""A timetable that starts a run at each instant of a cron expression."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from typing import Any

from triggerer.domain.timetables._triggers import first_tick
from triggerer.domain.timetables.clock import now
from triggerer.domain.timetables.cron.expression import Cron
from triggerer.domain.timetables.cron.in_words import describe_cron
from triggerer.domain.timetables.delta.durations import checked_duration, checked_interval
from triggerer.domain.timetables.ticks import TickTimetable
from triggerer.domain.timetables.zones import Zone, checked_zone, with_zone, zone_to_json


@dataclass(frozen=True, slots=True)
class CronTriggerTimetable(TickTimetable):
    """A run at each instant of the expression. `DAG(schedule="0 6 * * *")` means this timetable, as in Airflow 3.

    Args:
        interval: The length of the data interval before each run.
        run_immediately: Chooses the first run of a DAG with neither a start date nor a run. True: the last past
            instant. A timedelta: the last past instant if it was at most this long ago; otherwise the next instant.
            False: like a timedelta of five minutes, or of a tenth of the gap between two instants, whichever is more.
    Raises:
        DagError: An argument is invalid.
    """

    cron: str
    timezone: tzinfo | str | int = field(kw_only=True)
    interval: timedelta = field(kw_only=True, default=timedelta(0))
    run_immediately: bool | timedelta = field(kw_only=True, default=False)
    _ticks: Cron = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ticks = Cron(self.cron, checked_zone(self.timezone))
        object.__setattr__(self, "timezone", ticks.zone)
        object.__setattr__(self, "cron", ticks.expression)
        object.__setattr__(self, "interval", checked_interval(self.interval))
        if type(self.run_immediately) is not bool:
            allowed = checked_duration(self.run_immediately, "run_immediately")
            object.__setattr__(self, "run_immediately", allowed)
        object.__setattr__(self, "_ticks", ticks)

    @property
    def description(self) -> str:  # type: ignore[override]
        return describe_cron(self._ticks)

    @property
    def summary(self) -> str:
        return with_zone(self.cron, self._ticks.zone)

    @property
    def zone(self) -> Zone:
        """The time zone of the expression."""
        return self._ticks.zone

    def after(self, moment: datetime) -> datetime | None:
        return self._ticks.after(moment)

    def before(self, moment: datetime) -> datetime | None:
        return self._ticks.before(moment)

    def serialize(self) -> dict[str, Any]:
        allowed = self.run_immediately
        return {
            "cron": self.cron,
            "timezone": zone_to_json(self._ticks.zone),
            "interval": self.interval.total_seconds(),
            "run_immediately": allowed if isinstance(allowed, bool) else allowed.total_seconds(),
        }

    def first(self) -> datetime | None:
        """Return the first instant for a DAG with neither a start date nor a run."""
        if self.run_immediately is True:
            past = self._ticks.at_or_before(now())
            return past or self._ticks.after(now())
        allowed = self.run_immediately
        return first_tick(self, allowed if isinstance(allowed, timedelta) else None)

    def _first(self) -> datetime | None:
        return self.first()
