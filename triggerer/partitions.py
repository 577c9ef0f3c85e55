"""Partitions for DAG authors: mappers, windows and wait policies.

- A mapper turns an event's partition key into the keys of the runs that use the event.
- A window lists the parts of a period, such as the hours of a day.
- A roll-up collects the events of a window in one run.
- A wait policy says when the run of a roll-up may start.
"""

from triggerer.domain.partitions import (
    AllowedKeyMapper,
    ChainMapper,
    DayWindow,
    FanOutMapper,
    FixedKeyMapper,
    HourWindow,
    IdentityMapper,
    MinimumCount,
    MonthWindow,
    PartitionMapper,
    ProductMapper,
    QuarterWindow,
    RollupMapper,
    SegmentWindow,
    StartOfDayMapper,
    StartOfHourMapper,
    StartOfMonthMapper,
    StartOfQuarterMapper,
    StartOfWeekMapper,
    StartOfYearMapper,
    WaitForAll,
    WaitPolicy,
    WaitUntil,
    WeekWindow,
    Window,
    YearWindow,
)

__all__ = [
    "AllowedKeyMapper",
    "ChainMapper",
    "DayWindow",
    "FanOutMapper",
    "FixedKeyMapper",
    "HourWindow",
    "IdentityMapper",
    "MinimumCount",
    "MonthWindow",
    "PartitionMapper",
    "ProductMapper",
    "QuarterWindow",
    "RollupMapper",
    "SegmentWindow",
    "StartOfDayMapper",
    "StartOfHourMapper",
    "StartOfMonthMapper",
    "StartOfQuarterMapper",
    "StartOfWeekMapper",
    "StartOfYearMapper",
    "WaitForAll",
    "WaitPolicy",
    "WaitUntil",
    "WeekWindow",
    "Window",
    "YearWindow",
]
