"""Timetables, which decide when the runs of a DAG are due: the ready-made classes, and the interface for new ones.

Each name is imported at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from triggerer.domain import timetables

if TYPE_CHECKING:
    from triggerer.domain.timetables import (
        AfterWorkdayTimetable,
        AllOf,
        AnyOf,
        AssetAndTimeSchedule,
        AssetOrTimeSchedule,
        Consecutive,
        ContinuousTimetable,
        CronDataIntervalTimetable,
        CronPartitionTimetable,
        CronTriggerTimetable,
        DagRunInfo,
        DataInterval,
        Delayed,
        DeltaDataIntervalTimetable,
        DeltaTriggerTimetable,
        EventsTimetable,
        Except,
        ExceptDays,
        HasTicks,
        Keyed,
        MultipleCronTriggerTimetable,
        NullTimetable,
        OnceTimetable,
        PartitionedAssetTimetable,
        RollingWindow,
        RollUp,
        TickTimetable,
        TimeRestriction,
        Timetable,
        WorkdaysOfMonthTimetable,
        now,
    )

__all__ = [
    "AfterWorkdayTimetable",
    "AllOf",
    "AnyOf",
    "AssetAndTimeSchedule",
    "AssetOrTimeSchedule",
    "Consecutive",
    "ContinuousTimetable",
    "CronDataIntervalTimetable",
    "CronPartitionTimetable",
    "CronTriggerTimetable",
    "DagRunInfo",
    "DataInterval",
    "Delayed",
    "DeltaDataIntervalTimetable",
    "DeltaTriggerTimetable",
    "EventsTimetable",
    "Except",
    "ExceptDays",
    "HasTicks",
    "Keyed",
    "MultipleCronTriggerTimetable",
    "NullTimetable",
    "OnceTimetable",
    "PartitionedAssetTimetable",
    "RollUp",
    "RollingWindow",
    "TickTimetable",
    "TimeRestriction",
    "Timetable",
    "WorkdaysOfMonthTimetable",
    "now",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(timetables, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
