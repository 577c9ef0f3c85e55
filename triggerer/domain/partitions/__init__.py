"""Maps the partition keys of events to the keys of runs. The public names are in `triggerer.partitions`."""

from triggerer.domain.partitions.base import MOST_KEYS, PartitionMapper, downstream_keys
from triggerer.domain.partitions.composed import ChainMapper, ProductMapper
from triggerer.domain.partitions.keys import AllowedKeyMapper, FixedKeyMapper, IdentityMapper
from triggerer.domain.partitions.rolling_up import FanOutMapper, Progress, RollupMapper
from triggerer.domain.partitions.serialization import mapper_from_json, mapper_to_json, register
from triggerer.domain.partitions.temporal import (
    StartOfDayMapper,
    StartOfHourMapper,
    StartOfMonthMapper,
    StartOfQuarterMapper,
    StartOfWeekMapper,
    StartOfYearMapper,
    TemporalMapper,
)
from triggerer.domain.partitions.waiting import MinimumCount, WaitForAll, WaitPolicy, WaitUntil
from triggerer.domain.partitions.windows import (
    DayWindow,
    HourWindow,
    MonthWindow,
    QuarterWindow,
    SegmentWindow,
    WeekWindow,
    Window,
    YearWindow,
)

register(
    AllowedKeyMapper,
    ChainMapper,
    DayWindow,
    FanOutMapper,
    FixedKeyMapper,
    HourWindow,
    IdentityMapper,
    MinimumCount,
    MonthWindow,
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
    WaitUntil,
    WeekWindow,
    YearWindow,
)

__all__ = [
    "MOST_KEYS",
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
    "Progress",
    "QuarterWindow",
    "RollupMapper",
    "SegmentWindow",
    "StartOfDayMapper",
    "StartOfHourMapper",
    "StartOfMonthMapper",
    "StartOfQuarterMapper",
    "StartOfWeekMapper",
    "StartOfYearMapper",
    "TemporalMapper",
    "WaitForAll",
    "WaitPolicy",
    "WaitUntil",
    "WeekWindow",
    "Window",
    "YearWindow",
    "downstream_keys",
    "mapper_from_json",
    "mapper_to_json",
]
