"""Runs at the instants of several cron expressions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Any, Self

from triggerer.domain.timetables.base import (
    DagRunInfo,
    DataInterval,
    TimeRestriction,
)
from triggerer.domain.timetables.clock import now
from triggerer.domain.timetables.cron.triggers import CronTriggerTimetable
from triggerer.domain.timetables.ticks import HasTicks, earliest_after, latest_before
from triggerer.errors import DagError


@dataclass(frozen=True, slots=True, init=False)
class MultipleCronTriggerTimetable(HasTicks):
    """A run at each instant of any of the expressions. An instant that several expressions share makes one run.

    `interval` and `run_immediately` apply to each expression; see `CronTriggerTimetable`.

    Raises:
        DagError: No expression is given, or an argument is invalid.
    """

    timetables: tuple[CronTriggerTimetable, ...]

    def __init__(
        self,
        *crons: str,
        timezone: tzinfo | str | int,
        interval: timedelta = timedelta(0),
        run_immediately: bool | timedelta = False,
    ) -> None:
        if not crons:
            raise DagError("MultipleCronTriggerTimetable needs a cron expression")
        timetables = tuple(
            CronTriggerTimetable(
                cron, timezone=timezone, interval=interval, run_immediately=run_immediately
            )
            for cron in crons
        )
        object.__setattr__(self, "timetables", timetables)

    @property
    def description(self) -> str:  # type: ignore[override]
        return "; ".join(one.description for one in self.timetables)

    @property
    def summary(self) -> str:
        return ", ".join(one.summary for one in self.timetables)

    def next_dagrun_info(
        self,
        *,
        last_automated_data_interval: DataInterval | None,
        restriction: TimeRestriction,
    ) -> DagRunInfo | None:
        answers = (
            one.next_dagrun_info(
                last_automated_data_interval=last_automated_data_interval, restriction=restriction
            )
            for one in self.timetables
        )
        runs = [answer for answer in answers if answer is not None]
        if not restriction.catchup and (past := [run for run in runs if run.run_after <= now()]):
            # Make only the latest of the missed runs.
            return max(past)
        return min(runs, default=None)

    def restriction_between(self, start: datetime, end: datetime) -> TimeRestriction:
        return self.timetables[0].restriction_between(start, end)

    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
        return self.timetables[0].infer_manual_data_interval(run_after=run_after)

    def after(self, moment: datetime) -> datetime | None:
        """Return the first instant of a run after `moment`; None: there is none."""
        return earliest_after(self.timetables, moment)

    def before(self, moment: datetime) -> datetime | None:
        """Return the last instant of a run before `moment`; None: there is none."""
        return latest_before(self.timetables, moment)

    def serialize(self) -> dict[str, Any]:
        shared = self.timetables[0].serialize()
        del shared["cron"]
        return {"crons": [one.cron for one in self.timetables], **shared}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        shared = dict(data)
        return cls(*shared.pop("crons"), **shared)
