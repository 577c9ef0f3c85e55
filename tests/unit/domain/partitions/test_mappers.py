"""Partition keys: mappers, windows, roll-up and fan-out."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from triggerer import DAG, Asset
from triggerer.domain.partitions import downstream_keys, mapper_from_json, mapper_to_json
from triggerer.domain.schedules import (
    OnPartitions,
    schedule_from_json,
    schedule_of,
    schedule_to_json,
)
from triggerer.domain.timetables import timetable_from_json, timetable_to_json
from triggerer.errors import DagError, InvalidPartitionKey
from triggerer.partitions import (
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
    WaitUntil,
    WeekWindow,
    Window,
    YearWindow,
)
from triggerer.timetables import PartitionedAssetTimetable, TimeRestriction

HOURS = {"input_format": "%Y-%m-%dT%H"}
NOON = datetime(2024, 3, 13, 12, tzinfo=UTC)


def day_of_hours(**kwargs: object) -> RollupMapper:
    return RollupMapper(upstream_mapper=StartOfDayMapper(**{**HOURS, **kwargs}), window=DayWindow())


@pytest.mark.parametrize(
    ("mapper", "key"),
    [
        (IdentityMapper(), "2024-03-13T10:42:15"),
        (StartOfHourMapper(), "2024-03-13T10"),
        (StartOfDayMapper(), "2024-03-13"),
        (StartOfWeekMapper(), "2024-03-11 (W11)"),
        (StartOfMonthMapper(), "2024-03"),
        (StartOfQuarterMapper(), "2024-Q1"),
        (StartOfYearMapper(), "2024"),
        (StartOfDayMapper(output_format="%d.%m.%Y"), "13.03.2024"),
        (FixedKeyMapper("all"), "all"),
        (ChainMapper(StartOfDayMapper(), StartOfMonthMapper(input_format="%Y-%m-%d")), "2024-03"),
    ],
)
def test_a_key_is_for_the_period_that_it_is_in(mapper: PartitionMapper, key: str) -> None:
    assert downstream_keys(mapper, "2024-03-13T10:42:15") == (key,)


@pytest.mark.parametrize(
    ("mapper", "key"),
    [
        (StartOfYearMapper(), "0001"),
        (StartOfQuarterMapper(), "0001-Q1"),
        (StartOfWeekMapper(), "0001-01-01 (W01)"),
        (StartOfDayMapper(output_format="%d%%Y.%m.%Y"), "02%Y.01.0001"),
    ],
)
def test_the_first_day_of_other_systems_makes_a_key_that_can_be_read(
    mapper: PartitionMapper, key: str
) -> None:
    # Some systems write 0001-01-01 for a date that is missing.
    assert downstream_keys(mapper, "0001-01-02T00:00:00") == (key,)


def test_a_roll_up_reads_its_own_keys_of_the_first_year() -> None:
    days = StartOfMonthMapper(input_format="%Y-%m-%d")
    month = RollupMapper(upstream_mapper=days, window=MonthWindow())
    (key,) = downstream_keys(month, "0001-01-02")
    assert len(month.to_upstream(key)) == 31


def test_a_key_with_an_offset_is_for_the_day_of_the_mappers_clock() -> None:
    mapper = StartOfDayMapper(timezone="Asia/Tokyo", input_format="%Y-%m-%dT%H:%M%z")
    assert mapper.to_downstream("2024-03-13T14:59+0000") == "2024-03-13"
    assert mapper.to_downstream("2024-03-13T15:00+0000") == "2024-03-14"
    assert mapper.to_partition_date("2024-03-14") == datetime(2024, 3, 13, 15, tzinfo=UTC)


@pytest.mark.parametrize(
    "key", ["", "2024-03-13", "2024-13-01T00:00:00", "x", "2024-03-13T10:42:15Z"]
)
def test_a_key_that_does_not_fit_is_refused_and_named(key: str) -> None:
    with pytest.raises(InvalidPartitionKey) as refused:
        StartOfDayMapper().to_downstream(key)
    assert refused.value.key == key


def test_allowed_keys_pass_and_others_are_refused() -> None:
    mapper = AllowedKeyMapper(["eu", "us"])
    assert downstream_keys(mapper, "eu") == ("eu",)
    with pytest.raises(InvalidPartitionKey):
        mapper.to_downstream("apac")


def test_each_part_of_a_product_has_its_mapper() -> None:
    mapper = ProductMapper(StartOfDayMapper(), AllowedKeyMapper(["eu"]))
    assert mapper.to_downstream("2024-03-13T10:00:00|eu") == "2024-03-13|eu"
    assert mapper.to_partition_date("2024-03-13|eu") == datetime(2024, 3, 13, tzinfo=UTC)
    for key in ("2024-03-13T10:00:00", "2024-03-13T10:00:00|us", "a|b|c"):
        with pytest.raises(InvalidPartitionKey):
            mapper.to_downstream(key)
    dates = ProductMapper(StartOfDayMapper(), StartOfDayMapper())
    assert dates.to_partition_date("2024-03-13|2024-03-14") is None


@pytest.mark.parametrize(
    ("mapper", "run", "first", "last", "count"),
    [
        (RollupMapper(upstream_mapper=StartOfHourMapper(input_format="%H:%M %Y%m%d"), window=HourWindow()),
         "2024-03-13T10", "10:00 20240313", "10:59 20240313", 60),
        (day_of_hours(), "2024-03-13", "2024-03-13T00", "2024-03-13T23", 24),
        (RollupMapper(upstream_mapper=StartOfWeekMapper(input_format="%Y-%m-%d"), window=WeekWindow()),
         "2024-03-11 (W11)", "2024-03-11", "2024-03-17", 7),
        (RollupMapper(upstream_mapper=StartOfMonthMapper(input_format="%Y-%m-%d"), window=MonthWindow()),
         "2024-02", "2024-02-01", "2024-02-29", 29),
        (RollupMapper(upstream_mapper=StartOfMonthMapper(input_format="%Y-%m-%d"),
                      window=MonthWindow(direction="backward")),
         "2024-03", "2024-02-02", "2024-03-01", 29),
        (RollupMapper(upstream_mapper=StartOfQuarterMapper(input_format="%Y-%m"), window=QuarterWindow()),
         "2024-Q4", "2024-10", "2024-12", 3),
        (RollupMapper(upstream_mapper=StartOfYearMapper(input_format="%Y-%m"), window=YearWindow()),
         "2024", "2024-01", "2024-12", 12),
        (RollupMapper(upstream_mapper=StartOfDayMapper(**HOURS), window=DayWindow(direction=Window.Direction.BACKWARD)),
         "2024-03-13", "2024-03-12T01", "2024-03-13T00", 24),
    ],
)  # fmt: skip
def test_a_roll_up_knows_all_keys_that_it_needs(
    mapper: RollupMapper, run: str, first: str, last: str, count: int
) -> None:
    needed = mapper.to_upstream(run)
    assert len(needed) == count
    assert {first, last} <= needed
    if mapper.window.direction == "forward":
        assert {mapper.to_downstream(key) for key in needed} == {run}


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [("America/New_York", "2024-03-10", 23), ("America/New_York", "2024-11-03", 25), ("America/Nuuk", "2024-03-30", 23),
     ("Australia/Lord_Howe", "2024-10-06", 23), ("Australia/Lord_Howe", "2024-04-07", 24),
     ("Europe/Paris", "2024-06-01", 24)],
)  # fmt: skip
def test_a_day_on_which_clocks_are_set_has_the_hours_that_it_has(
    zone: str, day: str, hours: int
) -> None:
    """Airflow waits for an hour that does not come, or forgets one that occurs twice."""
    mapper = day_of_hours(timezone=zone, input_format="%Y-%m-%dT%H:%M%z")
    needed = mapper.to_upstream(day)
    assert len(needed) == hours
    assert {mapper.to_downstream(key) for key in needed} == {day}
    # An event in UTC can name the same hours.
    in_utc = [datetime.strptime(key, "%Y-%m-%dT%H:%M%z").astimezone(UTC) for key in needed]
    keys = [one.strftime("%Y-%m-%dT%H:%M%z") for one in in_utc]
    assert mapper.progress(day, keys, now=NOON, first_event_at=NOON).is_satisfied


def test_hours_without_an_offset_are_told_apart_by_the_clock_only() -> None:
    mapper = day_of_hours(timezone="America/New_York")
    assert len(mapper.to_upstream("2024-11-03")) == 24
    assert "2024-03-10T02" not in mapper.to_upstream("2024-03-10")


def test_a_day_that_has_no_midnight_is_part_of_its_week() -> None:
    mapper = RollupMapper(
        upstream_mapper=StartOfWeekMapper(timezone="America/Santiago", input_format="%Y-%m-%d"),
        window=WeekWindow(),
    )
    assert "2024-09-08" in mapper.to_upstream("2024-09-02 (W36)")


def test_a_roll_up_waits_for_all_or_for_so_many_or_until_a_deadline() -> None:
    regions = ["eu", "us", "apac"]

    def progress(policy: object, arrived: list[str], hours: float = 0):
        mapper = RollupMapper(
            upstream_mapper=FixedKeyMapper("all"), window=SegmentWindow(regions), wait_policy=policy
        )
        now = NOON + timedelta(hours=hours)
        return mapper.progress("all", arrived, now=now, first_event_at=NOON)

    assert progress(WaitForAll(), regions).is_satisfied
    waiting = progress(WaitForAll(), ["eu", "us", "mars"])
    assert waiting == (False, {"apac"}, None, None)
    assert progress(MinimumCount(2), ["eu", "us"]).is_satisfied
    assert not progress(MinimumCount(2), ["eu", "mars"]).is_satisfied
    assert progress(MinimumCount(-1), ["eu", "us"]).is_satisfied
    assert progress(MinimumCount(4), regions).unreachable is not None
    late = WaitUntil(timedelta(hours=2))
    assert progress(late, ["eu"], 1.9) == (False, {"us", "apac"}, NOON + timedelta(hours=2), None)
    assert progress(late, ["eu"], 2).is_satisfied
    assert not progress(late, ["mars"], 3).is_satisfied
    assert progress(late, regions).is_satisfied


def test_a_deadline_counts_from_the_end_of_the_period() -> None:
    mapper = RollupMapper(
        upstream_mapper=StartOfDayMapper(timezone="Europe/Paris", **HOURS),
        window=DayWindow(),
        wait_policy=WaitUntil(timedelta(hours=3)),
    )
    assert mapper.deadline("2024-03-31", first_event_at=NOON) == datetime(2024, 4, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("day", "hours", "near"),
    [
        ("2026-10-25", 25, ["T01+0200", "T02+0200", "T02+0100", "T03+0100"]),
        ("2026-03-29", 23, ["T00+0100", "T01+0100", "T03+0200", "T04+0200"]),
        ("2026-06-01", 24, ["T00+0200", "T01+0200", "T02+0200", "T03+0200"]),
    ],
)
def test_a_day_on_which_clocks_are_set_is_fanned_out_into_the_hours_that_it_has(
    day: str, hours: int, near: list[str]
) -> None:
    zone, written = "Europe/Berlin", "%Y-%m-%dT%H%z"
    mapper = FanOutMapper(
        upstream_mapper=StartOfDayMapper(timezone=zone, input_format="%Y-%m-%d"),
        window=DayWindow(),
        downstream_mapper=StartOfHourMapper(timezone=zone, output_format=written),
    )
    keys = downstream_keys(mapper, day)
    at = keys.index(f"{day}{near[0]}")
    assert [key.removeprefix(day) for key in keys[at : at + 4]] == near
    # The keys are consecutive, without repetition.
    instants = [datetime.strptime(key, written).astimezone(UTC) for key in keys]
    assert instants == [instants[0] + n * timedelta(hours=1) for n in range(hours)]
    # By the clock alone, as in Airflow.
    naive = replace(mapper, downstream_mapper=StartOfHourMapper(timezone=zone))
    assert len(downstream_keys(naive, day)) == 24


def test_a_period_fans_out_into_its_parts() -> None:
    month = FanOutMapper(
        upstream_mapper=StartOfMonthMapper(input_format="%Y-%m"), window=MonthWindow()
    )
    keys = downstream_keys(month, "2024-02")
    assert keys[0] == "2024-02-01"
    assert keys[-1] == "2024-02-29"
    assert len(keys) == 29
    assert month.to_partition_date("2024-02-03") == datetime(2024, 2, 3, tzinfo=UTC)
    few = replace(month, max_downstream_keys=28)
    with pytest.raises(InvalidPartitionKey, match="29 runs"):
        downstream_keys(few, "2024-02")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: RollupMapper(upstream_mapper=IdentityMapper(), window=DayWindow()),
        lambda: RollupMapper(upstream_mapper=StartOfDayMapper(), window=SegmentWindow(["a"])),
        lambda: RollupMapper(upstream_mapper="day", window=DayWindow()),
        lambda: RollupMapper(upstream_mapper=StartOfDayMapper(), window="day"),
        lambda: RollupMapper(upstream_mapper=StartOfDayMapper(), window=DayWindow(), wait_policy=3),
        lambda: FanOutMapper(upstream_mapper=StartOfHourMapper(), window=HourWindow()),
        lambda: SegmentWindow([]),
        lambda: SegmentWindow("eu"),
        lambda: AllowedKeyMapper([]),
        lambda: AllowedKeyMapper("eu"),
        lambda: FixedKeyMapper(""),
        lambda: MinimumCount(0),
        lambda: WaitUntil(timedelta(-1)),
        lambda: WaitUntil(timedelta(1), 0),
        lambda: DayWindow(direction="up"),
        lambda: StartOfDayMapper(timezone="Mars/Olympus"),
        lambda: StartOfDayMapper(output_format="%Y-%Y"),
        lambda: StartOfDayMapper(output_format="%Y{month}"),
        lambda: StartOfDayMapper(input_format=""),
        lambda: ProductMapper(IdentityMapper(), IdentityMapper(), delimiter=""),
        lambda: ChainMapper(IdentityMapper(), "x"),
        lambda: IdentityMapper(max_downstream_keys=0),
        lambda: PartitionedAssetTimetable(assets=Asset("s3://b/a"), default_partition_mapper="day"),
        lambda: PartitionedAssetTimetable(
            assets=Asset("s3://b/a"), partition_mapper_config={Asset("s3://b/b"): IdentityMapper()}
        ),
        lambda: PartitionedAssetTimetable(assets=[]),
    ],
)  # fmt: skip
def test_a_senseless_mapper_is_refused_when_the_file_is_read(wrong) -> None:
    with pytest.raises(DagError):
        wrong()


ALL = [
    IdentityMapper(),
    IdentityMapper(max_downstream_keys=5),
    AllowedKeyMapper(["a", "b"], max_downstream_keys=1),
    FixedKeyMapper("all"),
    StartOfHourMapper(timezone="Europe/Paris"),
    StartOfDayMapper(input_format="%Y-%m-%dT%H%z"),
    StartOfWeekMapper(),
    StartOfMonthMapper(timezone=3600),
    StartOfQuarterMapper(output_format="Q{quarter} of %Y"),
    StartOfYearMapper(),
    ChainMapper(IdentityMapper(), StartOfYearMapper(), IdentityMapper()),
    ProductMapper(StartOfDayMapper(), IdentityMapper(), delimiter="/", max_downstream_keys=2),
    RollupMapper(upstream_mapper=StartOfHourMapper(), window=HourWindow(direction="backward")),
    RollupMapper(upstream_mapper=StartOfDayMapper(), window=DayWindow(), wait_policy=MinimumCount(-2)),
    RollupMapper(upstream_mapper=StartOfWeekMapper(), window=WeekWindow(),
                 wait_policy=WaitUntil(timedelta(hours=1), 3)),
    RollupMapper(upstream_mapper=FixedKeyMapper("x"), window=SegmentWindow(["a", "b"])),
    FanOutMapper(upstream_mapper=StartOfQuarterMapper(), window=QuarterWindow()),
    FanOutMapper(upstream_mapper=StartOfYearMapper(), window=YearWindow(),
                 downstream_mapper=StartOfMonthMapper(output_format="%m/%Y")),
    FanOutMapper(upstream_mapper=StartOfMonthMapper(), window=MonthWindow()),
]  # fmt: skip


@pytest.mark.parametrize("mapper", ALL, ids=lambda one: type(one).__name__)
def test_a_mapper_comes_back_from_json_as_it_was(mapper: PartitionMapper) -> None:
    back = mapper_from_json(json.loads(json.dumps(mapper_to_json(mapper))))
    assert back == mapper
    assert hash(back) == hash(mapper)


@pytest.mark.parametrize(
    "value",
    [None, {}, {"type": "os.system", "arguments": {}}, {"type": "DayWindow", "arguments": {}},
     {"type": "IdentityMapper", "arguments": {"x": 1}}, {"type": "RollupMapper", "arguments": {}}],
)  # fmt: skip
def test_json_that_was_not_written_by_us_is_refused(value: object) -> None:
    with pytest.raises(DagError):
        mapper_from_json(value)


def test_a_mapper_of_ones_own_cannot_be_stored_and_says_so() -> None:
    class Mine(IdentityMapper):
        pass

    with pytest.raises(DagError, match=r"none of triggerer\.partitions"):
        mapper_to_json(Mine())


def test_a_partitioned_timetable_has_a_mapper_for_each_asset_and_asks_for_no_time() -> None:
    hourly, daily = Asset("s3://b/hourly"), Asset("s3://b/daily")
    timetable = PartitionedAssetTimetable(
        assets=hourly & daily, partition_mapper_config={hourly: day_of_hours()}
    )
    assert timetable.mapper_of(hourly) == day_of_hours()
    assert timetable.mapper_of(daily) == IdentityMapper()
    assert timetable_from_json(json.loads(json.dumps(timetable_to_json(timetable)))) == timetable
    schedule = schedule_of(timetable)
    assert schedule == OnPartitions(
        hourly & daily,
        mapper_to_json(IdentityMapper()),
        {hourly.name: mapper_to_json(day_of_hours())},
    )
    assert schedule_from_json(schedule_to_json(schedule)) == schedule
    info = timetable.next_dagrun_info(
        last_automated_data_interval=None, restriction=TimeRestriction(NOON, None, True)
    )
    assert info is None
    assert not timetable.can_be_scheduled


def test_a_dag_by_partitions_takes_no_number_of_events_per_run() -> None:
    timetable = PartitionedAssetTimetable(assets=Asset("s3://b/a"))
    assert isinstance(DAG("daily", schedule=timetable).schedule, OnPartitions)
    with pytest.raises(DagError, match="events_per_run does not go with partitions"):
        DAG("daily", schedule=timetable, events_per_run=1)
