"""The author of a DAG is warned of a roll-up whose run never starts, or starts too early."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from triggerer import Asset
from triggerer.domain.partitions.unreachable_roll_ups import impossible_roll_ups
from triggerer.domain.schedules import schedule_of
from triggerer.partitions import (
    DayWindow,
    FixedKeyMapper,
    HourWindow,
    IdentityMapper,
    MinimumCount,
    MonthWindow,
    PartitionMapper,
    QuarterWindow,
    RollupMapper,
    SegmentWindow,
    StartOfDayMapper,
    StartOfHourMapper,
    StartOfMonthMapper,
    StartOfQuarterMapper,
    StartOfWeekMapper,
    StartOfYearMapper,
    WaitUntil,
    WeekWindow,
    Window,
    YearWindow,
)
from triggerer.timetables import PartitionedAssetTimetable

FLIGHTS = Asset("x-test://flights", name="flights")
NOW = datetime(2026, 3, 5, 12, 34, tzinfo=UTC)
OFFSET = "%Y-%m-%dT%H%z"


def said(mapper: PartitionMapper, now: datetime = NOW) -> list[str]:
    timetable = PartitionedAssetTimetable(assets=FLIGHTS, default_partition_mapper=mapper)
    return list(impossible_roll_ups(schedule_of(timetable), now=now))


@pytest.mark.parametrize(
    ("upstream", "window"),
    [
        (StartOfHourMapper(), HourWindow()),
        (StartOfDayMapper(), DayWindow()),
        (StartOfDayMapper(timezone="America/Santiago", input_format=OFFSET), DayWindow()),
        (StartOfDayMapper(timezone="Australia/Lord_Howe", input_format="%Y-%m-%dT%H"), DayWindow()),
        (StartOfWeekMapper(), WeekWindow()),
        (StartOfMonthMapper(input_format="%d.%m.%Y"), MonthWindow()),
        (StartOfQuarterMapper(input_format="%Y-%m"), QuarterWindow()),
        (StartOfYearMapper(), YearWindow()),
        (FixedKeyMapper("world"), SegmentWindow(["eu", "us"])),
    ],
)
def test_a_fitting_roll_up_gets_no_warning(upstream: PartitionMapper, window: Window) -> None:
    for policy in (None, MinimumCount(2), MinimumCount(-1), WaitUntil(timedelta(hours=1))):
        roll_up = RollupMapper(upstream_mapper=upstream, window=window, wait_policy=policy)
        assert said(roll_up) == []


@pytest.mark.parametrize(
    ("roll_up", "reason"),
    [
        (
            RollupMapper(upstream_mapper=StartOfDayMapper(), window=QuarterWindow()),
            "'2026-01-05' never starts: a window of months or days counts from the first of a month",
        ),
        (
            RollupMapper(upstream_mapper=StartOfMonthMapper(), window=QuarterWindow()),
            "'2026-01' waits for '2026-02-01T00:00:00', which is for 2026-02",
        ),
        (
            RollupMapper(upstream_mapper=StartOfMonthMapper(), window=DayWindow()),
            "'2026-01' does not wait for the events from 2026-01-02 00:00:00 on",
        ),
        (
            RollupMapper(
                upstream_mapper=StartOfMonthMapper(),
                window=MonthWindow(),
                wait_policy=MinimumCount(29),
            ),
            "'2026-02' never starts: MinimumCount(n=29) asks for more than the 28 parts",
        ),
        (
            RollupMapper(
                upstream_mapper=FixedKeyMapper("world"),
                window=SegmentWindow(["eu", "us"]),
                wait_policy=MinimumCount(3),
            ),
            "'world' never starts: MinimumCount(n=3) asks for more than the 2 parts",
        ),
    ],
)
def test_a_window_that_does_not_fit_is_told_with_a_key(roll_up: RollupMapper, reason: str) -> None:
    (sentence,) = said(roll_up)
    assert sentence.startswith(f"the run of the partition key {reason}")


def test_the_same_is_said_throughout_a_year() -> None:
    roll_up = RollupMapper(upstream_mapper=StartOfHourMapper(), window=QuarterWindow())
    assert len({*said(roll_up), *said(roll_up, NOW + timedelta(days=100, hours=1))}) == 1


def test_other_mappers_are_not_checked() -> None:
    assert said(IdentityMapper()) == []
    assert list(impossible_roll_ups(schedule_of(FLIGHTS), now=NOW)) == []
