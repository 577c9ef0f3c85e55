"""Consecutive data intervals between the instants of a cron expression."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import Any

from triggerer.domain.timetables._intervals import next_interval, start_of_last
from triggerer.domain.timetables.base import (
    DagRunInfo,
    DataInterval,
    TimeRestriction,
    checked_instant,
    in_utc,
)
from triggerer.domain.timetables.cron.expression import Cron
from triggerer.domain.timetables.cron.in_words import describe_cron
from triggerer.domain.timetables.ticks import HasTicks
from triggerer.domain.timetables.zones import checked_zone, with_zone, zone_to_json


@dataclass(frozen=True, slots=True)
class CronDataIntervalTimetable(HasTicks):
    """A run at each instant of the expression, for the time since the previous instant.

    - With catch-up, the first interval begins at the first instant that is not before the DAG's start date. A DAG
      without a start date gets no first run.
    - Without catch-up, the first run covers the last interval that has ended. If this interval begins before the start
      date, the first interval is as with catch-up.

    Raises:
        DagError: The expression or the zone is invalid.
    """

    cron: str
    timezone: tzinfo | str | int = field(kw_only=True)
    _ticks: Cron = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ticks = Cron(self.cron, checked_zone(self.timezone))
        object.__setattr__(self, "timezone", ticks.zone)
        object.__setattr__(self, "cron", ticks.expression)
        object.__setattr__(self, "_ticks", ticks)

    @property
    def description(self) -> str:  # type: ignore[override]
        return f"{describe_cron(self._ticks)}, for the time since the previous instant"

    @property
    def summary(self) -> str:
        return with_zone(self.cron, self._ticks.zone)

    def next_dagrun_info(
        self,
        *,
        last_automated_data_interval: DataInterval | None,
        restriction: TimeRestriction,
    ) -> DagRunInfo | None:
        last, restriction = in_utc(last_automated_data_interval, restriction)
        return next_interval(
            self._ticks,
            last,
            earliest=restriction.earliest,
            latest=restriction.latest,
            over=None if restriction.catchup else lambda: start_of_last(self._ticks),
        )

    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
        run_after = checked_instant(run_after, "run_after")
        end = self._ticks.at_or_before(run_after)
        start = None if end is None else self._ticks.before(end)
        if end is None or start is None:  # the expression names only later years
            return DataInterval.exact(run_after)
        return DataInterval(start, end)

    def after(self, moment: datetime) -> datetime | None:
        """Return the first instant of a run after `moment`; None: there is none."""
        return self._ticks.after(moment)

    def before(self, moment: datetime) -> datetime | None:
        """Return the last instant of a run before `moment`; None: there is none."""
        return self._ticks.before(moment)

    def serialize(self) -> dict[str, Any]:
        return {"cron": self.cron, "timezone": zone_to_json(self._ticks.zone)}
