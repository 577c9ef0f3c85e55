"""When runs are due: one timetable a module. Their public names are in `triggerer.timetables`."""

from triggerer.domain.timetables.base import (
    DagRunInfo,
    DataInterval,
    TimeRestriction,
    Timetable,
)
from triggerer.domain.timetables.clock import now
from triggerer.domain.timetables.continuous import ContinuousTimetable
from triggerer.domain.timetables.cron_intervals import CronDataIntervalTimetable
from triggerer.domain.timetables.cron_triggers import CronTriggerTimetable
from triggerer.domain.timetables.delta_intervals import DeltaDataIntervalTimetable
from triggerer.domain.timetables.delta_triggers import DeltaTriggerTimetable
from triggerer.domain.timetables.events import EventsTimetable
from triggerer.domain.timetables.never import NullTimetable
from triggerer.domain.timetables.once import OnceTimetable
from triggerer.domain.timetables.schedules import timetable_of
from triggerer.domain.timetables.serialization import (
    GROUP,
    installed_timetables,
    register_built_in,
    timetable_from_json,
    timetable_to_json,
)
from triggerer.domain.timetables.several_crons import MultipleCronTriggerTimetable
from triggerer.domain.timetables.with_assets import AssetAndTimeSchedule, AssetOrTimeSchedule

register_built_in(
    AssetAndTimeSchedule,
    AssetOrTimeSchedule,
    ContinuousTimetable,
    CronDataIntervalTimetable,
    CronTriggerTimetable,
    DeltaDataIntervalTimetable,
    DeltaTriggerTimetable,
    EventsTimetable,
    MultipleCronTriggerTimetable,
    NullTimetable,
    OnceTimetable,
)

__all__ = [
    "GROUP",
    "AssetAndTimeSchedule",
    "AssetOrTimeSchedule",
    "ContinuousTimetable",
    "CronDataIntervalTimetable",
    "CronTriggerTimetable",
    "DagRunInfo",
    "DataInterval",
    "DeltaDataIntervalTimetable",
    "DeltaTriggerTimetable",
    "EventsTimetable",
    "MultipleCronTriggerTimetable",
    "NullTimetable",
    "OnceTimetable",
    "TimeRestriction",
    "Timetable",
    "installed_timetables",
    "now",
    "timetable_from_json",
    "timetable_of",
    "timetable_to_json",
]
