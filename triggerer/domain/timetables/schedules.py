"""Turns a DAG's `schedule` into a timetable, if the schedule names times."""

from __future__ import annotations

from datetime import timedelta, tzinfo
from typing import Final

from triggerer.domain.timetables.base import Timetable
from triggerer.domain.timetables.continuous import ContinuousTimetable
from triggerer.domain.timetables.cron.triggers import CronTriggerTimetable
from triggerer.domain.timetables.delta.triggers import DeltaTriggerTimetable
from triggerer.domain.timetables.never import NullTimetable
from triggerer.domain.timetables.once import OnceTimetable
from triggerer.errors import DagError

_WORDS: Final[dict[str, type[Timetable]]] = {
    "@once": OnceTimetable,
    "@continuous": ContinuousTimetable,
}


def timetable_of(schedule: object, *, timezone: tzinfo | str = "UTC") -> Timetable:
    """Return the timetable that a schedule means in Airflow 3's default configuration.

    Args:
        schedule: None, a timetable, a `timedelta`, a cron expression or a preset.
        timezone: The zone of a cron expression.
    Raises:
        DagError: The schedule is of another type, or invalid.
    """
    match schedule:
        case None:
            return NullTimetable()
        case Timetable():
            return schedule
        case timedelta():
            return DeltaTriggerTimetable(schedule)
        case str() if (kind := _WORDS.get(schedule.strip().lower())) is not None:
            return kind()
        case str():
            return CronTriggerTimetable(schedule, timezone=timezone)
    raise DagError(
        f"{schedule!r} is no schedule in time",
        hint="use None, a cron expression, a preset such as @daily, a timedelta or a timetable",
    )
