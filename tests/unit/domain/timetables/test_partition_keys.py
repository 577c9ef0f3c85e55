"""Partition keys that timetables make from data intervals."""

import random
from bisect import bisect_left
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
import time_machine
from hypothesis import given
from hypothesis import strategies as st

from tests.airflow.timetable_cases import ZONES, clock_changes
from tests.unit.domain.timetables.test_walk import FIXED, random_expressions
from tests.unit.domain.timetables.walk import fires
from triggerer import Asset
from triggerer.domain.backfills import runs_between
from triggerer.domain.schedules import OnTime, partition_key_of, run_of_key
from triggerer.errors import DagError, InvalidPartitionKey, RowRefused
from triggerer.timetables import (
    AfterWorkdayTimetable,
    AnyOf,
    AssetOrTimeSchedule,
    Consecutive,
    CronDataIntervalTimetable,
    CronPartitionTimetable,
    CronTriggerTimetable,
    DagRunInfo,
    DataInterval,
    Delayed,
    DeltaTriggerTimetable,
    Keyed,
    MultipleCronTriggerTimetable,
    PartitionedAssetTimetable,
    RollingWindow,
    RollUp,
    TickTimetable,
    TimeRestriction,
    Timetable,
)

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
MONDAY = datetime(2026, 3, 9, tzinfo=UTC)
OFFSETS = (-3, -2, -1, 0, 1, 2)
WITH_OFFSET = "%Y-%m-%dT%H:%M:%S%z"


def chain(
    timetable: Timetable,
    start: datetime | None,
    number: int,
    *,
    end: datetime | None = None,
    catchup: bool = True,
    last: DataInterval | None = None,
) -> list[tuple[DagRunInfo, str | None]]:
    """Return the next runs with their keys, as a scheduler creates them one after the other."""
    found = []
    for _ in range(number):
        info = timetable.next_dagrun_info(
            last_automated_data_interval=last, restriction=TimeRestriction(start, end, catchup)
        )
        if info is None:
            break
        found.append((info, timetable.partition_key(info.data_interval)))
        last = info.data_interval
    return found


def keys(
    timetable: Timetable, start: datetime | None, number: int, *, catchup: bool = True
) -> list[str]:
    return [key for _, key in chain(timetable, start, number, catchup=catchup) if key is not None]


@pytest.mark.parametrize(
    ("offset", "date", "until"),
    [(-2, 7, 8), (-1, 8, 9), (0, 9, 10), (None, 9, 10), (1, 10, 11)],
)
def test_a_run_is_for_the_partition_that_is_so_many_instants_away(
    offset: int | None, date: int, until: int
) -> None:
    daily = CronPartitionTimetable("@daily", timezone="UTC", run_offset=offset)
    ((info, key),) = chain(daily, MONDAY, 1)
    assert info.run_after == MONDAY
    assert (info.data_interval.start.day, info.data_interval.end.day) == (date, until)
    assert info.logical_date == info.data_interval.start
    assert key == f"2026-03-{date:02}T00:00:00"


def test_an_hour_s_key_can_be_written_as_the_roll_up_of_a_day_reads_it() -> None:
    hourly = CronPartitionTimetable(
        "@hourly", timezone="UTC", run_offset=-1, key_format="%Y-%m-%dT%H"
    )
    assert keys(hourly, MONDAY + HOUR, 3) == ["2026-03-09T00", "2026-03-09T01", "2026-03-09T02"]
    quarterly = CronPartitionTimetable("@quarterly", timezone="UTC", key_format="%Y-Q{quarter}")
    assert keys(quarterly, MONDAY, 3) == ["2026-Q2", "2026-Q3", "2026-Q4"]


@pytest.mark.parametrize(
    ("key_format", "expected"),
    [
        ("%Y-%m-%dT%H", ["T00", "T01", "T02", "T02", "T03"]),
        ("%Y-%m-%dT%H%z", ["T00+0200", "T01+0200", "T02+0200", "T02+0100", "T03+0100"]),
    ],
)
def test_an_hour_that_comes_twice_is_two_partitions_whose_keys_differ_if_they_show_the_offset(
    key_format: str, expected: list[str]
) -> None:
    hourly = CronPartitionTimetable("@hourly", timezone="Europe/Paris", key_format=key_format)
    found = keys(hourly, datetime(2026, 10, 24, 22, tzinfo=UTC), 5)
    assert found == [f"2026-10-25{one}" for one in expected]


def test_an_hour_that_is_left_out_is_no_partition_and_a_day_without_its_time_is_one() -> None:
    spring = datetime(2026, 3, 28, 23, tzinfo=UTC)
    hourly = CronPartitionTimetable("@hourly", timezone="Europe/Paris", key_format="%d. %H")
    assert keys(hourly, spring, 4) == ["29. 00", "29. 01", "29. 03", "29. 04"]
    daily = CronPartitionTimetable("30 2 * * *", timezone="Europe/Paris", run_offset=-1)
    assert keys(daily, spring, 3) == [
        "2026-03-28T02:30:00",
        "2026-03-29T03:30:00",
        "2026-03-30T02:30:00",
    ]


@pytest.mark.parametrize("offset", OFFSETS)
def test_without_catch_up_the_last_run_that_was_missed_is_made_and_with_it_all_are(
    offset: int,
) -> None:
    daily = CronPartitionTimetable("@daily", timezone="UTC", run_offset=offset, key_format="%d")
    ((first, _),) = chain(daily, MONDAY, 1)
    with time_machine.travel(MONDAY + 5 * DAY + HOUR, tick=False):
        late = [
            [info.run_after.day for info, _ in chain(
                daily, MONDAY, 3, catchup=catchup, last=first.data_interval)]
            for catchup in (False, True)
        ]  # fmt: skip
        named = keys(daily, None, 2, catchup=False)
    assert late == [[14, 15, 16], [10, 11, 12]]
    # The first run was due an hour ago. The timetable also creates a run that is late by less than a tenth of a day.
    assert named == [f"{14 + offset}", f"{15 + offset}"]


@pytest.mark.parametrize("offset", OFFSETS)
def test_start_and_end_bound_the_runs_and_nothing_is_about_a_time_after_the_end(
    offset: int,
) -> None:
    daily = CronPartitionTimetable("@daily", timezone="UTC", run_offset=offset)
    found = chain(daily, MONDAY, 100, end=MONDAY + 9 * DAY)
    assert found[0][0].run_after == MONDAY
    assert len(found) == 10 - max(offset, 0)


def test_after_a_change_of_the_schedule_it_goes_on_behind_what_was_run() -> None:
    before = CronPartitionTimetable("@daily", timezone="UTC", run_offset=0)
    ((last, _),) = chain(before, MONDAY, 1)
    after = CronPartitionTimetable("@hourly", timezone="UTC", run_offset=-1, key_format="%d. %H")
    ((info, key),) = chain(after, None, 1, last=last.data_interval)
    # The last run was for the partition of midnight. So the next run is for the partition of 01:00.
    assert (info.run_after, key) == (MONDAY + 2 * HOUR, "09. 01")
    elsewhere = CronPartitionTimetable("30 * * * *", timezone="UTC", run_offset=-1)
    ((info, key),) = chain(elsewhere, None, 1, last=last.data_interval)
    assert (info.run_after, key) == (MONDAY + 1.5 * HOUR, "2026-03-09T00:30:00")


def test_a_run_by_hand_is_for_the_partition_of_the_last_instant() -> None:
    hourly = CronPartitionTimetable("@hourly", timezone="UTC", run_offset=-1)
    interval = hourly.infer_manual_data_interval(run_after=MONDAY + timedelta(minutes=150))
    assert interval == DataInterval(MONDAY + HOUR, MONDAY + 2 * HOUR)
    assert hourly.infer_manual_data_interval(run_after=MONDAY).end == MONDAY


@pytest.mark.parametrize(
    "arguments",
    [
        {"run_offset": 501},
        {"run_offset": True},
        {"run_offset": HOUR},
        {"key_format": ""},
        {"key_format": "{week}"},
        {"key_format": "%Y" * 100},
        {"key_format": "\0"},
        {"key_format": "x" * 251},
        {"key_format": None},
        {"timezone": "Mars"},
        {"cron": "0 0 30 2 *"},
    ],
)
def test_a_format_without_partition_keys_is_refused_when_the_file_is_read(
    arguments: dict[str, object],
) -> None:
    given = {"cron": "@daily", "timezone": "UTC", **arguments}
    with pytest.raises(DagError):
        CronPartitionTimetable(given.pop("cron"), **given)  # type: ignore[arg-type]


# Over minutes


@pytest.mark.full
@pytest.mark.parametrize("zone", ZONES)
def test_keys_are_those_of_the_instants_that_a_walk_over_the_minutes_finds(zone: str) -> None:
    draw = random.Random(zone)
    changes = clock_changes(zone) or (datetime(2026, 3, 29, tzinfo=UTC),)
    change = draw.choice(changes)
    start, end = change - 3 * DAY, change + 2 * DAY
    for expression in (*draw.sample(FIXED, 2), *random_expressions(len(zone), 1)):
        ticks = fires(expression, zone, start, end)
        first = bisect_left(ticks, change - DAY)
        for offset in draw.sample(OFFSETS, 3):
            timetable = CronPartitionTimetable(
                expression, timezone=zone, run_offset=offset, key_format=WITH_OFFSET
            )
            expected = []
            for number, tick in enumerate(ticks):
                at = number + offset
                if number < first or at < 0 or at + 1 >= len(ticks):
                    continue
                key = ticks[at].astimezone(ZoneInfo(zone)).strftime(WITH_OFFSET)
                expected.append((DagRunInfo(tick, DataInterval(*ticks[at : at + 2])), key))
            if not expected or first + offset < 0:
                continue
            found = chain(timetable, change - DAY, len(expected))
            assert found == expected, (expression, zone, offset)
            assert len({key for _, key in found}) == len(found)


MOMENTS = st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)).map(  # noqa: DTZ001
    lambda one: one.replace(tzinfo=UTC)
)
MARGINS = {"sun": 30, "W": 130, "6": 6}
TIMETABLES = st.builds(
    lambda cron, zone, offset: CronPartitionTimetable(
        cron, timezone=zone, run_offset=offset, key_format=WITH_OFFSET
    ),
    st.sampled_from(["30 2 * * *", "0 0 * * *", "0 */6 * * *", "45 1-3 * * sun", "0 12 15W * *"]),
    st.sampled_from(ZONES),
    st.sampled_from(OFFSETS),
) | st.sampled_from(
    [
        Keyed(CronDataIntervalTimetable("0 6 * * *", timezone="Europe/Paris"), timezone="UTC"),
        Keyed(RollingWindow(CronTriggerTimetable("@daily", timezone="UTC"), 7 * DAY), timezone="UTC"),
        Keyed(AfterWorkdayTimetable(timezone="Asia/Tokyo"), timezone="Asia/Tokyo", key_format="%Y-%m-%d"),
        Delayed(CronPartitionTimetable("@daily", timezone="UTC", run_offset=-1), HOUR),
    ]
)  # fmt: skip


@given(TIMETABLES, MOMENTS)
def test_a_key_leads_back_to_its_run(timetable: Timetable, moment: datetime) -> None:
    for info, key in chain(timetable, moment, 4):
        assert key is not None
        assert run_of_key(OnTime(timetable), key) == info


@given(TIMETABLES, MOMENTS, st.integers(0, 60))
def test_a_range_holds_the_runs_of_all_partitions_that_begin_in_it(
    timetable: Timetable, moment: datetime, length: int
) -> None:
    """The expected runs come from a chain of runs that begins before the range and ends after it."""
    end = moment + length * HOUR
    margin = next((days for mark, days in MARGINS.items() if mark in timetable.summary), 12) * DAY
    found = runs_between(timetable, moment, end, now=end + 400 * DAY)
    assert found == [
        info
        for info, _ in chain(timetable, moment - margin, 100_000, end=end + margin)
        if moment <= info.logical_date <= end
    ]


@pytest.mark.parametrize("offset", OFFSETS)
def test_a_backfill_of_ten_days_has_ten_partitions_whatever_the_offset(offset: int) -> None:
    daily = CronPartitionTimetable("@daily", timezone="UTC", run_offset=offset)
    found = runs_between(daily, MONDAY, MONDAY + 9 * DAY, now=MONDAY + 30 * DAY)
    assert [info.logical_date for info in found] == [MONDAY + n * DAY for n in range(10)]
    assert {info.run_after - info.logical_date for info in found} == {-offset * DAY}


@pytest.mark.parametrize(
    ("timetable", "hour"),
    [
        (CronTriggerTimetable("0 6 * * *", timezone="UTC", interval=6 * HOUR), 0),
        (MultipleCronTriggerTimetable("0 6 * * *", timezone="UTC", interval=6 * HOUR), 0),
        (DeltaTriggerTimetable(DAY, interval=18 * HOUR), 6),
        (RollingWindow(CronDataIntervalTimetable("@daily", timezone="UTC"), 3 * DAY), 0),
    ],
    ids=lambda one: type(one).__name__,
)
def test_the_last_logical_date_of_a_range_is_in_it_also_where_the_run_is_later(
    timetable: Timetable, hour: int
) -> None:
    end = MONDAY + 2 * DAY + hour * HOUR
    found = runs_between(timetable, MONDAY, end, now=MONDAY + 30 * DAY)
    assert found[-1].logical_date == end


# Any timetable


def test_the_runs_of_any_timetable_in_time_have_keys_with_keyed() -> None:
    days = Keyed(AfterWorkdayTimetable(timezone="UTC"), timezone="UTC", key_format="%Y-%m-%d")
    assert keys(days, MONDAY + 3 * DAY, 3) == ["2026-03-12", "2026-03-13", "2026-03-16"]
    assert days.description.startswith(days.timetable.description)
    both = Keyed(Delayed(CronDataIntervalTimetable("@daily", timezone="UTC"), HOUR), timezone="UTC")
    assert keys(both, MONDAY, 1) == ["2026-03-09T00:00:00"]


def test_a_timetable_around_one_with_keys_keeps_them_where_the_data_interval_is_the_same() -> None:
    keyed = CronPartitionTimetable("@daily", timezone="UTC", run_offset=-1)
    for other in (Delayed(keyed, HOUR), AssetOrTimeSchedule(timetable=keyed, assets=Asset("x-a"))):
        assert other.partitioned
        assert keys(other, MONDAY, 1) == keys(keyed, MONDAY, 1)
    for wrong in (
        lambda: RollingWindow(keyed, DAY),
        lambda: Consecutive(keyed),
        lambda: RollUp(keyed),
        lambda: AnyOf(keyed),
        lambda: Keyed(keyed, timezone="UTC"),
    ):
        with pytest.raises(DagError, match="partition keys"):
            wrong()


def test_a_schedule_with_assets_takes_no_keys_of_time() -> None:
    assets = PartitionedAssetTimetable(assets=Asset("x-a"))
    with pytest.raises(DagError, match="without assets"):
        Keyed(assets, timezone="UTC")
    with pytest.raises(DagError, match="without assets"):
        AssetOrTimeSchedule(timetable=assets, assets=Asset("x-a"))
    with pytest.raises(DagError, match="takes a timetable"):
        Keyed("@daily", timezone="UTC")  # type: ignore[arg-type]


def test_a_key_of_no_data_interval_is_refused_and_a_timetable_without_keys_knows_none() -> None:
    daily = OnTime(CronPartitionTimetable("0 6 * * *", timezone="UTC", key_format="%Y-%m-%d"))
    found = run_of_key(daily, "2026-03-09")
    assert found is not None
    assert found.logical_date == MONDAY + 6 * HOUR
    weekly = OnTime(CronPartitionTimetable("0 6 * * mon", timezone="UTC", key_format="%Y-%m-%d"))
    for schedule, key in ((weekly, "2026-03-10"), (daily, "tomorrow"), (daily, "2026-02-30")):
        with pytest.raises(InvalidPartitionKey):
            run_of_key(schedule, key)
    assert run_of_key(OnTime(CronTriggerTimetable("@daily", timezone="UTC")), "2026-03-09") is None
    assert run_of_key(None, "2026-03-09") is None


def test_a_timetable_may_answer_only_with_a_valid_partition_key() -> None:
    class Wrong(TickTimetable):
        partitioned = True

        def after(self, moment: datetime) -> datetime:
            return moment + HOUR

        def before(self, moment: datetime) -> datetime:
            return moment - HOUR

        def partition_key(self, interval: DataInterval) -> str:
            return ""

    with pytest.raises(RowRefused):
        partition_key_of(OnTime(Wrong()), DataInterval.exact(MONDAY))


def test_a_timetable_that_stands_still_before_the_range_is_an_error() -> None:
    class Standing(TickTimetable):
        def after(self, moment: datetime) -> datetime:
            return MONDAY - 3 * DAY

        def before(self, moment: datetime) -> datetime:
            return MONDAY - 3 * DAY

    with pytest.raises(DagError, match="does not advance"):
        runs_between(Standing(), MONDAY, MONDAY + DAY, now=MONDAY + 30 * DAY)
