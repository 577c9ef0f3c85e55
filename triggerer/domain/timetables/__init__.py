"""Timetables say when runs are due. DAG files import them from `triggerer.timetables`.

Names are imported on first use, so that commands do not wait for the import of every timetable and of the cron parser.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triggerer.domain.timetables.base import (
        DagRunInfo,
        DataInterval,
        TimeRestriction,
        Timetable,
    )
    from triggerer.domain.timetables.clock import now
    from triggerer.domain.timetables.combined import AllOf, AnyOf, Except, ExceptDays
    from triggerer.domain.timetables.continuous import ContinuousTimetable
    from triggerer.domain.timetables.cron.intervals import CronDataIntervalTimetable
    from triggerer.domain.timetables.cron.partitions import CronPartitionTimetable
    from triggerer.domain.timetables.cron.several import MultipleCronTriggerTimetable
    from triggerer.domain.timetables.cron.triggers import CronTriggerTimetable
    from triggerer.domain.timetables.delta.intervals import DeltaDataIntervalTimetable
    from triggerer.domain.timetables.delta.triggers import DeltaTriggerTimetable
    from triggerer.domain.timetables.events import EventsTimetable
    from triggerer.domain.timetables.keyed import Keyed
    from triggerer.domain.timetables.never import NullTimetable
    from triggerer.domain.timetables.once import OnceTimetable
    from triggerer.domain.timetables.partitioned import PartitionedAssetTimetable
    from triggerer.domain.timetables.reshaped import Consecutive, Delayed, RollingWindow, RollUp
    from triggerer.domain.timetables.schedules import timetable_of
    from triggerer.domain.timetables.serialization import (
        GROUP,
        installed_timetables,
        timetable_from_json,
        timetable_to_json,
    )
    from triggerer.domain.timetables.ticks import HasTicks, TickTimetable
    from triggerer.domain.timetables.with_assets import AssetAndTimeSchedule, AssetOrTimeSchedule
    from triggerer.domain.timetables.workdays import AfterWorkdayTimetable, WorkdaysOfMonthTimetable

__all__ = [
    "GROUP",
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
    "installed_timetables",
    "now",
    "timetable_from_json",
    "timetable_of",
    "timetable_to_json",
]

_HOMES = {
    "GROUP": "serialization",
    "AfterWorkdayTimetable": "workdays",
    "AllOf": "combined",
    "AnyOf": "combined",
    "AssetAndTimeSchedule": "with_assets",
    "AssetOrTimeSchedule": "with_assets",
    "Consecutive": "reshaped",
    "ContinuousTimetable": "continuous",
    "CronDataIntervalTimetable": "cron.intervals",
    "CronPartitionTimetable": "cron.partitions",
    "CronTriggerTimetable": "cron.triggers",
    "DagRunInfo": "base",
    "DataInterval": "base",
    "Delayed": "reshaped",
    "DeltaDataIntervalTimetable": "delta.intervals",
    "DeltaTriggerTimetable": "delta.triggers",
    "EventsTimetable": "events",
    "Except": "combined",
    "ExceptDays": "combined",
    "HasTicks": "ticks",
    "Keyed": "keyed",
    "MultipleCronTriggerTimetable": "cron.several",
    "NullTimetable": "never",
    "OnceTimetable": "once",
    "PartitionedAssetTimetable": "partitioned",
    "RollUp": "reshaped",
    "RollingWindow": "reshaped",
    "TickTimetable": "ticks",
    "TimeRestriction": "base",
    "Timetable": "base",
    "WorkdaysOfMonthTimetable": "workdays",
    "installed_timetables": "serialization",
    "now": "clock",
    "timetable_from_json": "serialization",
    "timetable_of": "schedules",
    "timetable_to_json": "serialization",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
