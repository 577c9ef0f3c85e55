"""The author of a DAG is warned if two hours share a partition key."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from triggerer import Asset
from triggerer.domain.partitions.repeated_hours import repeated_keys
from triggerer.domain.schedules import schedule_of
from triggerer.partitions import (
    ChainMapper,
    DayWindow,
    FanOutMapper,
    HourWindow,
    IdentityMapper,
    MonthWindow,
    RollupMapper,
    StartOfDayMapper,
    StartOfHourMapper,
    StartOfMonthMapper,
)
from triggerer.timetables import (
    AssetOrTimeSchedule,
    CronDataIntervalTimetable,
    CronPartitionTimetable,
    Delayed,
    Keyed,
    PartitionedAssetTimetable,
)

NOW = datetime(2026, 3, 10, 12, 34, 56, 789, tzinfo=UTC)
BERLIN, LORD_HOWE = "Europe/Berlin", "Australia/Lord_Howe"
HOURS = "%Y-%m-%dT%H"
FLIGHTS = Asset("x-test://flights", name="flights")


def said(schedule: Any, now: datetime = NOW) -> list[str]:
    return list(repeated_keys(schedule_of(schedule), now=now))


def cron(expression: str, zone: str, key_format: str, **options: Any) -> CronPartitionTimetable:
    return CronPartitionTimetable(expression, timezone=zone, key_format=key_format, **options)


def test_it_is_said_when_and_which_key() -> None:
    (sentence,) = said(cron("@hourly", BERLIN, HOURS, run_offset=-1))
    assert sentence == (
        "when clocks are set back in Europe/Berlin, next on 2026-10-25, two runs have the partition key "
        "'2026-10-25T02': with %z in key_format each has its own"
    )


@pytest.mark.parametrize(
    ("expression", "zone", "key_format", "is_repeated"),
    [
        ("@hourly", BERLIN, "%Y-%m-%dT%H:%M:%S", True),
        ("*/15 * * * *", BERLIN, "%Y%m%d-%H%M", True),
        ("@hourly", "America/New_York", HOURS, True),
        ("@hourly", "Australia/Sydney", HOURS, True),
        ("*/30 * * * *", LORD_HOWE, "%Y-%m-%dT%H:%M", True),
        # The hours have different keys.
        ("@hourly", BERLIN, "%Y-%m-%dT%H%z", False),
        ("@hourly", BERLIN, "%Y-%m-%dT%H %Z", False),
        # The clock of this zone never changes.
        ("@hourly", "UTC", HOURS, False),
        ("@hourly", "Asia/Kolkata", HOURS, False),
        ("@hourly", "Europe/Moscow", HOURS, False),
        # No run is in that hour, or its key does not name hours.
        ("@daily", BERLIN, HOURS, False),
        ("30 2 * * *", BERLIN, HOURS, False),
        ("@hourly", BERLIN, "%Y-%m-%d", False),
        ("@hourly", LORD_HOWE, HOURS, False),
    ],
)
def test_only_where_two_runs_do_have_one_key(
    expression: str, zone: str, key_format: str, is_repeated: bool
) -> None:
    timetable = cron(expression, zone, key_format)
    assert len(said(timetable)) == is_repeated
    interval = CronDataIntervalTimetable(expression, timezone=zone)
    keyed = Keyed(interval, timezone=zone, key_format=key_format)
    assert len(said(keyed)) == is_repeated
    assert len(said(AssetOrTimeSchedule(timetable=timetable, assets=FLIGHTS))) == is_repeated


def test_timetables_inside_others_are_checked_too() -> None:
    assert len(said(Delayed(cron("@hourly", BERLIN, HOURS), timedelta(minutes=5)))) == 1


@pytest.mark.parametrize("now", [datetime(2026, 10, 25, 0, 30, tzinfo=UTC), NOW])
def test_it_is_known_whenever_it_is_asked(now: datetime) -> None:
    (sentence,) = said(cron("@hourly", BERLIN, HOURS), now)
    assert "next on 2026-10-25" in sentence
    (sentence,) = said(cron("@hourly", BERLIN, HOURS), datetime(2026, 10, 25, 1, 0, 1, tzinfo=UTC))
    assert "next on 2027-10-31" in sentence


def test_a_schedule_without_keys_gets_no_warning() -> None:
    assert said(None) == []
    assert said(FLIGHTS) == []
    assert said("@hourly") == []


@pytest.mark.parametrize(
    ("mapper", "expected"),
    [
        (IdentityMapper(), None),
        (StartOfHourMapper(), None),
        (StartOfDayMapper(timezone=BERLIN), None),
        (StartOfHourMapper(timezone=BERLIN), "two hours have the partition key '2026-10-25T02'"),
        (StartOfHourMapper(timezone=BERLIN, output_format="%Y-%m-%dT%H%z"), "two hours"),
        # The clock shows half of an hour twice, but no hour begins twice.
        (StartOfHourMapper(timezone=LORD_HOWE), None),
        (
            RollupMapper(
                upstream_mapper=StartOfDayMapper(timezone=LORD_HOWE, input_format=HOURS),
                window=DayWindow(),
            ),
            None,
        ),
        (
            RollupMapper(
                upstream_mapper=StartOfHourMapper(
                    timezone=LORD_HOWE, input_format="%Y-%m-%dT%H:%M"
                ),
                window=HourWindow(),
            ),
            "'2026-04-05T01:30' is the partition key of two parts of a HourWindow",
        ),
        (
            StartOfHourMapper(
                timezone=BERLIN, input_format="%Y-%m-%dT%H:%M%z", output_format="%Y-%m-%dT%H"
            ),
            "two hours",
        ),
        (
            RollupMapper(
                upstream_mapper=StartOfDayMapper(timezone=BERLIN, input_format=HOURS),
                window=DayWindow(),
            ),
            "'2026-10-25T02' is the partition key of two parts of a DayWindow",
        ),
        (
            RollupMapper(
                upstream_mapper=StartOfHourMapper(timezone=BERLIN, input_format="%Y-%m-%dT%H:%M"),
                window=HourWindow(),
            ),
            "two parts of a HourWindow",
        ),
        (
            RollupMapper(
                upstream_mapper=StartOfDayMapper(timezone=BERLIN, input_format=HOURS + "%z"),
                window=DayWindow(),
            ),
            None,
        ),
        (
            RollupMapper(
                upstream_mapper=StartOfMonthMapper(timezone=BERLIN, input_format="%Y-%m-%d"),
                window=MonthWindow(),
            ),
            None,
        ),
        (
            ChainMapper(StartOfHourMapper(timezone=BERLIN), IdentityMapper()),
            "two hours",
        ),
        (
            FanOutMapper(
                upstream_mapper=StartOfDayMapper(timezone=BERLIN, input_format="%Y-%m-%d"),
                window=DayWindow(),
                downstream_mapper=StartOfHourMapper(timezone=BERLIN),
            ),
            "two hours",
        ),
    ],
)
def test_so_are_mappers(mapper: Any, expected: str | None) -> None:
    schedules = (
        PartitionedAssetTimetable(assets=FLIGHTS, default_partition_mapper=mapper),
        PartitionedAssetTimetable(assets=FLIGHTS, partition_mapper_config={FLIGHTS: mapper}),
    )
    for schedule in schedules:
        sentences = said(schedule)
        assert len(sentences) == (expected is not None)
        assert expected is None or expected in sentences[0]
