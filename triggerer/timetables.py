"""When the runs of a DAG are due: what DAG authors use, and what authors of timetables implement."""

from triggerer.domain.timetables import (
    AssetAndTimeSchedule,
    AssetOrTimeSchedule,
    ContinuousTimetable,
    CronDataIntervalTimetable,
    CronTriggerTimetable,
    DagRunInfo,
    DataInterval,
    DeltaDataIntervalTimetable,
    DeltaTriggerTimetable,
    EventsTimetable,
    MultipleCronTriggerTimetable,
    NullTimetable,
    OnceTimetable,
    TimeRestriction,
    Timetable,
    now,
)

__all__ = [
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
    "now",
]
