"""Partition keys when a zone's clocks change: mappers, windows and timetables compute the same key for a partition."""

from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triggerer.domain.partitions import downstream_keys
from triggerer.domain.partitions.ranges import keys_between
from triggerer.partitions import (
    DayWindow,
    FanOutMapper,
    HourWindow,
    MinimumCount,
    MonthWindow,
    RollupMapper,
    StartOfDayMapper,
    StartOfHourMapper,
    StartOfMonthMapper,
    StartOfQuarterMapper,
    StartOfWeekMapper,
    StartOfYearMapper,
    WaitUntil,
    WeekWindow,
)
from triggerer.timetables import CronPartitionTimetable

LORD_HOWE: Final = "Australia/Lord_Howe"
NAIVE, EXACT = "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S%z"
HOUR, SHORT = "%Y-%m-%dT%H", "%Y-%m-%dT%H%z"
NOON, HOURS = datetime(2024, 3, 13, 12, tzinfo=UTC), timedelta(hours=2)
CHANGES: Final = [
    # Half an hour, forward and back.
    (LORD_HOWE, "2024-10-05T15:30"), (LORD_HOWE, "2024-04-06T15:00"),
    ("America/New_York", "2024-03-10T07:00"), ("America/New_York", "2024-11-03T06:00"),
    # Midnight is skipped, or occurs twice.
    ("America/Santiago", "2024-09-08T04:00"), ("America/Havana", "2024-11-03T05:00"),
    # At one minute past midnight.
    ("America/St_Johns", "2006-04-02T03:31"), ("America/St_Johns", "2006-10-29T02:31"),
    ("America/Nuuk", "2024-03-31T01:00"),
    # A day is skipped.
    ("Pacific/Apia", "2011-12-30T10:00"),
    ("Asia/Kathmandu", "1985-12-31T18:30"), ("Africa/Monrovia", "1972-01-07T00:44:30"),
    # Offsets with seconds.
    ("Europe/Amsterdam", "1937-06-30T22:40:28"), ("Europe/Dublin", "1916-05-21T02:25:21"),
]  # fmt: skip
PERIODS: Final = [StartOfHourMapper, StartOfDayMapper, StartOfWeekMapper, StartOfMonthMapper,
                  StartOfQuarterMapper, StartOfYearMapper]  # fmt: skip


@st.composite
def instants(draw: st.DrawFn) -> datetime:
    """Draw an aware instant on the clock of any zone, often near a change of the clock."""
    if draw(st.booleans()):
        zone, change = draw(st.sampled_from(CHANGES))
        seconds = draw(st.integers(-2 * 86_400, 2 * 86_400) | st.integers(-5_400, 5_400))
        moment = datetime.fromisoformat(change).replace(tzinfo=UTC) + timedelta(seconds=seconds)
    else:
        zone = draw(st.sampled_from(sorted(available_timezones())))
        moment = datetime.fromtimestamp(draw(st.integers(-1_500_000_000, 2_200_000_000)), UTC)
    return moment.astimezone(ZoneInfo(zone))


ROLL_UPS = st.sampled_from(
    [(StartOfHourMapper, HourWindow, "* * * * *"), (StartOfDayMapper, DayWindow, "0 * * * *"),
     (StartOfWeekMapper, WeekWindow, "0 0 * * *"), (StartOfMonthMapper, MonthWindow, "0 0 * * *")]
)  # fmt: skip


@given(instants(), ROLL_UPS, st.sampled_from([NAIVE, EXACT]), st.integers(0, 59))
def test_a_run_waits_for_exactly_the_parts_that_a_timetable_makes(
    moment: datetime, roll_up, input_format: str, number: int
) -> None:
    start, window, cron = roll_up
    zone = moment.tzinfo
    reader = start(timezone=zone, input_format=input_format, output_format=EXACT)
    mapper = RollupMapper(upstream_mapper=reader, window=window())
    timetable = CronPartitionTimetable(cron, timezone=zone, key_format=input_format)
    made = timetable.partition_key(timetable.infer_manual_data_interval(run_after=moment))
    run = mapper.to_downstream(made)
    needed = mapper.to_upstream(run)
    assert mapper.canonical_upstream(made) in needed
    assert needed == {mapper.canonical_upstream(key) for key in needed}
    assert {mapper.to_downstream(key) for key in needed} == {run}
    # Each key that the run needs is a key that the timetable produces.
    part = sorted(needed)[number % len(needed)]
    begins = datetime.fromisoformat(part)
    begins = begins if begins.tzinfo else begins.replace(tzinfo=zone)
    tick = timetable.after(begins.astimezone(UTC) - timedelta(microseconds=1))
    assert mapper.canonical_upstream(tick.astimezone(zone).strftime(input_format)) == part


@given(instants(), st.sampled_from(PERIODS), st.sampled_from([NAIVE, EXACT, None]))
def test_a_runs_key_names_the_period_of_its_events(
    moment: datetime, start, output_format: str | None
) -> None:
    reader = start(timezone=moment.tzinfo, input_format=EXACT, output_format=output_format)
    run = reader.to_downstream(moment.strftime(EXACT))
    assert reader.to_downstream(moment.astimezone(UTC).strftime(EXACT)) == run
    begins = reader.to_partition_date(run)
    assert reader.to_downstream(reader.key_at(begins)) == run
    assert reader.to_downstream(reader.key_at(begins - timedelta(microseconds=1))) != run
    assert reader.format(reader.decode_downstream(run)) == run
    if output_format == EXACT:
        assert begins <= moment


@given(instants(), st.sampled_from([EXACT, SHORT, HOUR]))
def test_a_day_is_fanned_out_into_the_hours_that_its_events_are_in(
    moment: datetime, output_format: str
) -> None:
    zone, day = moment.tzinfo, moment.strftime("%Y-%m-%d")
    writer = StartOfHourMapper(timezone=zone, input_format=EXACT, output_format=output_format)
    days = StartOfDayMapper(timezone=zone, input_format="%Y-%m-%d")
    fan_out = FanOutMapper(upstream_mapper=days, window=DayWindow(), downstream_mapper=writer)
    hours = downstream_keys(fan_out, day)
    assert writer.to_downstream(moment.strftime(EXACT)) in hours
    if output_format != HOUR:
        begins = [writer.to_partition_date(hour) for hour in hours]
        assert [writer.to_downstream(writer.key_at(one)) for one in begins] == list(hours)
    assert roll_up_of_hours(zone, output_format).to_upstream(day) <= set(hours)


def roll_up_of_hours(zone: object, input_format: str, **options: object) -> RollupMapper:
    hours = StartOfDayMapper(timezone=zone, input_format=input_format)
    return RollupMapper(upstream_mapper=hours, window=DayWindow(), **options)


@pytest.mark.parametrize("style", [EXACT, SHORT])
@pytest.mark.parametrize(("zone", "day"), [(LORD_HOWE, "2024-10-06"), ("America/St_Johns", "2006-04-02")])  # fmt: skip
def test_a_day_starts_with_the_hours_of_an_hourly_timetable(
    zone: str, day: str, style: str
) -> None:
    """On this day clocks skip the beginning of an hour, so an hourly timetable has only 23 ticks.

    The day must not wait for the key of the hour without a tick.
    """
    timetable = CronPartitionTimetable("@hourly", timezone=zone, key_format=style)
    tick = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone)) - timedelta(seconds=1)
    made = []
    while (tick := timetable.after(tick)).astimezone(ZoneInfo(zone)).strftime("%Y-%m-%d") == day:
        made.append(tick.astimezone(ZoneInfo(zone)).strftime(style))
    mapper = roll_up_of_hours(zone, style)
    assert len(made) == 23
    assert mapper.progress(day, made, now=NOON, first_event_at=NOON).is_satisfied


def test_the_rest_of_an_hour_whose_beginning_is_skipped_has_a_run_but_no_day_waits_for_it() -> None:
    hour = RollupMapper(
        upstream_mapper=StartOfHourMapper(
            timezone=LORD_HOWE, input_format="%Y-%m-%dT%H:%M%z", output_format=SHORT
        ),
        window=HourWindow(),
    )
    run = hour.to_downstream("2024-10-06T02:45+1100")
    assert run == hour.to_downstream("2024-10-05T15:45+0000") == "2024-10-06T02+1100"
    assert hour.to_partition_date(run) == datetime(2024, 10, 5, 15, 30, tzinfo=UTC)
    minutes = [f"2024-10-06T02:{minute}+1100" for minute in range(30, 60)]
    assert hour.to_upstream(run) == set(minutes)
    day = roll_up_of_hours(LORD_HOWE, SHORT)
    assert day.canonical_upstream(run) == run
    assert run not in day.to_upstream("2024-10-06")


def test_an_hour_and_a_day_that_the_clock_skips_never_run_for_want_of_parts() -> None:
    minutes = StartOfHourMapper(timezone="America/New_York", input_format="%Y-%m-%dT%H:%M")
    hour = RollupMapper(upstream_mapper=minutes, window=HourWindow(), wait_policy=WaitUntil(HOURS))
    day = roll_up_of_hours("Pacific/Apia", HOUR, wait_policy=MinimumCount(-2))
    for mapper, key in ((hour, "2024-03-10T02:15"), (day, "2011-12-30T05")):
        run = mapper.to_downstream(key)
        late = NOON + timedelta(days=9_999)
        progress = mapper.progress(run, [key], now=late, first_event_at=NOON)
        assert not progress.is_satisfied
        assert progress.unreachable == "the period has no parts, because clocks skip it"


@pytest.mark.parametrize(
    ("zone", "keys"),
    [
        # Midnight occurs twice. The timetable's day begins with the second midnight, a mapper's day with the first.
        ("America/Havana", ["2024-11-03T00-0400", "2024-11-03T00-0500", "2024-11-03T04+0000"]),
        # Midnight is skipped. The day begins at one o'clock, which is midnight by the offset of the day before.
        ("America/Santiago", ["2024-09-08T01-0300", "2024-09-08T00-0400", "2024-09-08T04+0000"]),
    ],
)
def test_a_day_has_one_key_even_if_midnight_is_skipped_or_occurs_twice(
    zone: str, keys: list[str]
) -> None:
    days = StartOfWeekMapper(timezone=zone, input_format=SHORT)
    mapper = RollupMapper(upstream_mapper=days, window=WeekWindow())
    needed = mapper.to_upstream(mapper.to_downstream(keys[0]))
    assert len(needed) == 7
    assert {mapper.canonical_upstream(key) for key in keys} == {keys[0]}
    assert keys[0] in needed


def test_a_week_does_not_wait_for_a_day_that_the_clock_skips() -> None:
    days = StartOfWeekMapper(timezone="Pacific/Apia", input_format="%Y-%m-%d")
    mapper = RollupMapper(upstream_mapper=days, window=WeekWindow())
    needed = mapper.to_upstream("2011-12-26 (W52)")
    assert needed == {f"2011-12-{day}" for day in (26, 27, 28, 29, 31)} | {"2012-01-01"}
    assert mapper.canonical_upstream("2011-12-30") not in needed


@pytest.mark.parametrize(("zone", "change"), CHANGES)
@pytest.mark.parametrize("output_format", [SHORT, HOUR])
def test_a_backfill_has_every_hour(zone: str, change: str, output_format: str) -> None:
    mapper = StartOfHourMapper(timezone=zone, input_format=EXACT, output_format=output_format)
    start = datetime.fromisoformat(change).replace(tzinfo=UTC) - timedelta(minutes=135)
    end = start + timedelta(hours=6)
    minutes = [start + timedelta(minutes=minute) for minute in range(6 * 60 + 1)]
    met = [mapper.to_downstream(minute.strftime(EXACT)) for minute in minutes]
    hours = [key for key in dict.fromkeys(met) if start <= mapper.to_partition_date(key) <= end]
    assert keys_between([mapper], start, end, now=end + timedelta(days=1)) == hours
