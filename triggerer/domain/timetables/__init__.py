"""When runs are due: one timetable a module. Their public names are in `triggerer.timetables`."""

from triggerer.domain.timetables.base import (
    DagRunInfo,
    DataInterval,
    TimeRestriction,
    Timetable,
)
from triggerer.domain.timetables.clock import now
from triggerer.domain.timetables.combined import AllOf, AnyOf, Except, ExceptDays
from triggerer.domain.timetables.continuous import ContinuousTimetable
from triggerer.domain.timetables.cron_intervals import CronDataIntervalTimetable
from triggerer.domain.timetables.cron_triggers import CronTriggerTimetable
from triggerer.domain.timetables.delta_intervals import DeltaDataIntervalTimetable
from triggerer.domain.timetables.delta_triggers import DeltaTriggerTimetable
from triggerer.domain.timetables.events import EventsTimetable
from triggerer.domain.timetables.never import NullTimetable
from triggerer.domain.timetables.once import OnceTimetable
from triggerer.domain.timetables.partitioned import PartitionedAssetTimetable
from triggerer.domain.timetables.reshaped import Consecutive, Delayed, RollingWindow, RollUp
from triggerer.domain.timetables.schedules import timetable_of
from triggerer.domain.timetables.serialization import (
    GROUP,
    installed_timetables,
    register_built_in,
    timetable_from_json,
    timetable_to_json,
)
from triggerer.domain.timetables.several_crons import MultipleCronTriggerTimetable
from triggerer.domain.timetables.ticks import HasTicks, TickTimetable
from triggerer.domain.timetables.with_assets import AssetAndTimeSchedule, AssetOrTimeSchedule
from triggerer.domain.timetables.workdays import (
    AfterWorkdayTimetable,
    WorkdaysOfMonthTimetable,
)

register_built_in(
    AfterWorkdayTimetable,
    AllOf,
    AnyOf,
    AssetAndTimeSchedule,
    AssetOrTimeSchedule,
    Consecutive,
    ContinuousTimetable,
    CronDataIntervalTimetable,
    CronTriggerTimetable,
    Delayed,
    DeltaDataIntervalTimetable,
    DeltaTriggerTimetable,
    EventsTimetable,
    Except,
    ExceptDays,
    MultipleCronTriggerTimetable,
    NullTimetable,
    OnceTimetable,
    PartitionedAssetTimetable,
    RollUp,
    RollingWindow,
    WorkdaysOfMonthTimetable,
)

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
