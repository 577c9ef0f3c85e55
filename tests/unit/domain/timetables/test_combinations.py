"""Timetables made of other timetables, and timetables of workdays."""

from datetime import UTC, date, datetime, time, timedelta
from itertools import islice, pairwise

import pytest
import time_machine
from hypothesis import given, settings
from hypothesis import strategies as st

from triggerer.domain.backfills import runs_between
from triggerer.errors import DagError
from triggerer.timetables import (
    AfterWorkdayTimetable,
    AllOf,
    AnyOf,
    Consecutive,
    ContinuousTimetable,
    CronDataIntervalTimetable,
    CronTriggerTimetable,
    DagRunInfo,
    DataInterval,
    Delayed,
    DeltaDataIntervalTimetable,
    DeltaTriggerTimetable,
    EventsTimetable,
    Except,
    ExceptDays,
    HasTicks,
    OnceTimetable,
    RollingWindow,
    RollUp,
    TimeRestriction,
    Timetable,
    WorkdaysOfMonthTimetable,
)

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
CATCH_UP = TimeRestriction(datetime(2026, 1, 1, tzinfo=UTC), None, catchup=True)
CHRISTMAS = date(2026, 12, 25)


def cron(expression: str, zone: str = "UTC") -> CronTriggerTimetable:
    return CronTriggerTimetable(expression, timezone=zone)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def ask(
    timetable: Timetable,
    now: str,
    last: tuple[str, str] | None = None,
    *,
    earliest: str | None = None,
    latest: str | None = None,
    catchup: bool = False,
) -> tuple[str, str, str] | None:
    """Return run_after, start and end of the interval as short texts."""
    with time_machine.travel(at(now), tick=False):
        info = timetable.next_dagrun_info(
            last_automated_data_interval=last and DataInterval(*map(at, last)),
            restriction=TimeRestriction(earliest and at(earliest), latest and at(latest), catchup),
        )
    return info and tuple(
        one.strftime("%m-%d %H:%M") for one in (info.run_after, *info.data_interval)
    )


def instants(timetable: HasTicks, start: str, number: int) -> list[str]:
    moment, found = at(start), []
    for _ in range(number):
        moment = timetable.after(moment)
        if moment is None:
            break
        found.append(moment.strftime("%m-%d %H:%M"))
    return found


def chain(
    timetable: Timetable, restriction: TimeRestriction, now: str, number: int
) -> list[DagRunInfo]:
    last, found = None, []
    with time_machine.travel(at(now), tick=False):
        for _ in range(number):
            info = timetable.next_dagrun_info(
                last_automated_data_interval=last, restriction=restriction
            )
            if info is None:
                break
            last = info.data_interval
            found.append(info)
    return found


def test_any_of_runs_whenever_one_of_them_does_and_once_where_they_meet() -> None:
    both = AnyOf(cron("0 12 * * *"), cron("0 */8 * * *"), cron("0 0 * * *"))
    assert instants(both, "2026-03-10", 4) == [
        "03-10 08:00",
        "03-10 12:00",
        "03-10 16:00",
        "03-11 00:00",
    ]
    assert ask(both, "2026-03-12 13:00", ("2026-03-10", "2026-03-10"))[0] == "03-12 12:00"


def test_all_of_runs_where_they_meet_and_never_where_they_do_not() -> None:
    friday_13th = AllOf(cron("0 6 13 * *"), cron("0 6 * * fri"))
    assert instants(friday_13th, "2026-01-01", 3) == ["02-13 06:00", "03-13 06:00", "11-13 06:00"]
    assert friday_13th.before(at("2026-03-01")) == at("2026-02-13 06:00")
    assert AllOf(cron("0 6 * * *"), cron("0 7 * * *")).after(at("2026-01-01")) is None
    ended = AllOf(cron("0 6 * * *"), EventsTimetable([at("2026-01-05 06:00")]))
    assert instants(ended, "2026-01-01", 3) == ["01-05 06:00"]


def test_except_leaves_out_what_another_names_or_what_is_on_some_days() -> None:
    workdays = Except(cron("0 6 * * *"), cron("* * * * sat,sun"))
    assert instants(workdays, "2026-03-12 12:00", 3) == [
        "03-13 06:00",
        "03-16 06:00",
        "03-17 06:00",
    ]
    assert workdays.before(at("2026-03-16")) == at("2026-03-13 06:00")
    no_christmas = ExceptDays(cron("0 0 * * *", "Asia/Tokyo"), [CHRISTMAS], timezone="Asia/Tokyo")
    assert instants(no_christmas, "2026-12-23", 3) == ["12-23 15:00", "12-25 15:00", "12-26 15:00"]


def test_a_combination_without_any_instant_says_so_in_time_however_it_is_nested() -> None:
    nothing = Except(cron("0 6 * * *"), cron("* * * * *"))
    nested = AllOf(cron("30 * * * *"), AnyOf(nothing, AllOf(cron("1 * * * *"), cron("2 * * * *"))))
    looked = 0
    original = CronTriggerTimetable.after

    def counting(self: CronTriggerTimetable, moment: datetime) -> datetime | None:
        nonlocal looked
        looked += 1
        return original(self, moment)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CronTriggerTimetable, "after", counting)
        assert nothing.after(at("2026-01-01")) is None
        assert nested.after(at("2026-01-01")) is None
    assert looked < 40_000


def test_a_timetable_without_instants_cannot_be_combined() -> None:
    for value in (DeltaTriggerTimetable(HOUR), ContinuousTimetable(), "0 6 * * *", None):
        for combine in (AnyOf, AllOf, Consecutive, RollUp, lambda one: Except(cron("@daily"), one)):
            with pytest.raises(DagError, match="with fixed instants"):
                combine(value)
    for combine in (AnyOf, AllOf):
        with pytest.raises(DagError):
            combine()


def test_consecutive_is_to_any_instants_what_data_intervals_are_to_cron() -> None:
    plain = CronDataIntervalTimetable("0 6 * * *", timezone="Europe/Paris")
    made = Consecutive(cron("0 6 * * *", "Europe/Paris"))
    for catchup in (False, True):
        for earliest in (None, "2026-03-01 12:00"):
            for last in (
                None,
                ("2026-03-05 05:00", "2026-03-06 05:00"),
                ("2026-03-05", "2026-03-05"),
            ):
                kwargs = {"earliest": earliest, "catchup": catchup}
                assert ask(made, "2026-03-29 06:00", last, **kwargs) == ask(
                    plain, "2026-03-29 06:00", last, **kwargs
                )


def test_delayed_runs_later_for_the_same_interval() -> None:
    late = Delayed(CronDataIntervalTimetable("@daily", timezone="UTC"), 3 * HOUR)
    assert ask(late, "2026-03-10 01:00") == ("03-10 03:00", "03-09 00:00", "03-10 00:00")
    assert ask(late, "2026-03-10 01:00", ("2026-03-09", "2026-03-10"))[0] == "03-11 03:00"
    assert late.infer_manual_data_interval(run_after=at("2026-03-10 01:00")).end == at("2026-03-10")


def test_delayed_delays_timetables_whose_first_run_is_now() -> None:
    for timetable in (OnceTimetable(), DeltaTriggerTimetable(HOUR)):
        first = ask(Delayed(timetable, 8 * HOUR), "2026-03-10 01:00")
        assert first is not None
        assert first[0] == "03-10 09:00"


def test_a_delayed_timetable_repeats_no_time_that_the_last_run_covered() -> None:
    """Before a change of the DAG, its timetable had no delay."""
    late = Delayed(ContinuousTimetable(), 8 * HOUR)
    found = ask(late, "2026-03-10 12:00", ("2026-03-10 11:00", "2026-03-10 11:59"))
    assert found is not None
    assert found[1] == "03-10 11:59"


@pytest.mark.parametrize(
    "timetable",
    [
        CronDataIntervalTimetable("@hourly", timezone="UTC"),
        CronTriggerTimetable("@hourly", timezone="UTC"),
        DeltaDataIntervalTimetable(HOUR),
        DeltaTriggerTimetable(HOUR),
    ],
    ids=lambda timetable: type(timetable).__name__,
)
def test_a_delay_that_is_longer_than_an_interval_drops_no_run(timetable: Timetable) -> None:
    """In an earlier version, runs that were due within the delay counted as missed, and were dropped."""
    late = Delayed(timetable, 2 * HOUR + timedelta(minutes=30))
    free = TimeRestriction(None, None, catchup=False)
    with time_machine.travel(at("2026-03-10 01:00"), tick=False) as clock:
        last = None
        starts = []
        for _ in range(6):
            info = late.next_dagrun_info(last_automated_data_interval=last, restriction=free)
            assert info is not None
            clock.move_to(max(info.run_after, at("2026-03-10 01:00")))
            last = info.data_interval
            starts.append(info.run_after)
    assert [after - before for before, after in pairwise(starts)] == [HOUR] * 5


def test_a_rolling_window_ends_with_each_run_and_is_as_long_as_asked() -> None:
    month = RollingWindow(CronDataIntervalTimetable("@daily", timezone="UTC"), 30 * DAY)
    first = ask(month, "2026-03-10 01:00")
    assert first == ("03-10 00:00", "02-08 00:00", "03-10 00:00")
    assert ask(month, "2026-03-10 01:00", ("2026-02-08", "2026-03-10")) == (
        "03-11 00:00",
        "02-09 00:00",
        "03-11 00:00",
    )
    assert ask(month, "2026-03-15 01:00", ("2026-02-08", "2026-03-10"))[0] == "03-15 00:00"
    hours = RollingWindow(cron("@hourly"), DAY)
    infos = chain(hours, CATCH_UP, "2026-01-05", 5)
    assert [info.run_after for info in infos] == [at("2026-01-01") + n * HOUR for n in range(5)]
    assert {info.run_after - info.logical_date for info in infos} == {DAY}


@given(
    window=st.integers(min_value=1, max_value=20).map(timedelta),
    timetable=st.sampled_from(
        [
            CronDataIntervalTimetable("@weekly", timezone="UTC"),
            CronTriggerTimetable("@weekly", timezone="UTC", interval=2 * DAY),
            EventsTimetable([at("2026-03-02"), at("2026-03-11"), at("2026-03-12")]),
        ]
    ),
    begin=st.integers(min_value=0, max_value=40),
    days=st.integers(min_value=0, max_value=20),
)
def test_a_backfill_of_a_part_finds_the_runs_of_a_rolling_window_that_the_whole_has(
    window: timedelta, timetable: Timetable, begin: int, days: int
) -> None:
    rolling = RollingWindow(timetable, window)
    now = at("2026-12-01")
    whole = runs_between(rolling, at("2026-02-01"), at("2026-06-01"), now=now)
    start = at("2026-03-01") + begin * DAY
    end = start + days * DAY
    part = runs_between(rolling, start, end, now=now)
    assert part == [info for info in whole if start <= info.logical_date <= end]


def test_missed_intervals_are_rolled_up_into_one_run() -> None:
    daily = RollUp(cron("@daily"))
    assert ask(daily, "2026-03-10 01:00", ("2026-03-05", "2026-03-06")) == (
        "03-10 00:00",
        "03-06 00:00",
        "03-10 00:00",
    )
    assert ask(daily, "2026-03-10 01:00", ("2026-03-06", "2026-03-10")) == (
        "03-11 00:00",
        "03-10 00:00",
        "03-11 00:00",
    )
    # The first run covers the last interval, or with catch-up everything since the start.
    first = {"earliest": "2026-02-01"}
    assert ask(daily, "2026-03-10 01:00", **first) == ("03-10 00:00", "03-09 00:00", "03-10 00:00")
    assert ask(daily, "2026-03-10 01:00", catchup=True, **first) == (
        "03-10 00:00",
        "02-01 00:00",
        "03-10 00:00",
    )
    # The interval ends at the end date, even when asked long afterwards.
    ended, last = {"latest": "2026-03-07"}, ("2026-03-05", "2026-03-06")
    assert ask(daily, "2026-05-01", last, **ended) == (
        "03-08 00:00",
        "03-06 00:00",
        "03-08 00:00",
    )
    assert ask(daily, "2026-05-01", ("2026-03-06", "2026-03-08"), **ended) is None


def test_after_workday_runs_at_the_end_of_each_for_that_day() -> None:
    timetable = AfterWorkdayTimetable(timezone="America/New_York", holidays=[CHRISTMAS])
    restriction = TimeRestriction(at("2026-12-22"), None, catchup=True)
    infos = chain(timetable, restriction, "2027-06-01", 5)
    local = [
        (f"{one.astimezone(timetable.timezone):%a %d. %H:%M}")
        for info in infos
        for one in info.data_interval
    ]
    assert local == [
        "Tue 22. 00:00", "Wed 23. 00:00", "Wed 23. 00:00", "Thu 24. 00:00", "Thu 24. 00:00", "Fri 25. 00:00",
        "Mon 28. 00:00", "Tue 29. 00:00", "Tue 29. 00:00", "Wed 30. 00:00",
    ]  # fmt: skip
    # On a weekend without catch-up, the last run is Friday's.
    new_york = AfterWorkdayTimetable(timezone="UTC")
    assert ask(new_york, "2026-03-15 12:00") == ("03-14 00:00", "03-13 00:00", "03-14 00:00")
    assert ask(new_york, "2026-03-15 12:00", ("2026-03-13", "2026-03-14"))[0] == "03-17 00:00"
    manual = new_york.infer_manual_data_interval(run_after=at("2026-03-16 12:00"))
    assert manual == (at("2026-03-13"), at("2026-03-14"))
    assert ask(new_york, "2026-03-15", catchup=True) is None


@pytest.mark.parametrize("zone", ["America/Santiago", "America/Havana", "Africa/Cairo"])
def test_a_day_of_work_is_whole_also_where_midnight_is_left_out_or_comes_twice(zone: str) -> None:
    timetable = AfterWorkdayTimetable(timezone=zone, workdays=range(7))
    restriction = TimeRestriction(at("2024-01-01"), None, catchup=True)
    infos = chain(timetable, restriction, "2026-01-01", 800)
    for before, after in pairwise(infos):
        assert before.data_interval.end == after.data_interval.start
    hours = {(info.run_after - info.logical_date) / HOUR for info in infos}
    assert hours == {23, 24, 25}
    for info in islice(infos, 0, 800, 7):
        assert timetable.before(info.run_after + timedelta(seconds=1)) == info.run_after
        assert timetable.after(info.run_after - timedelta(seconds=1)) == info.run_after


def test_the_15th_and_the_last_day_of_a_month_are_moved_to_a_day_of_work() -> None:
    payroll = WorkdaysOfMonthTimetable(15, -1, timezone="UTC", at=time(6))
    # 15 August 2026 is a Saturday, 31 May a Sunday.
    assert instants(payroll, "2026-05-01", 8) == [
        "05-15 06:00", "05-29 06:00", "06-15 06:00", "06-30 06:00", "07-15 06:00", "07-31 06:00", "08-14 06:00",
        "08-31 06:00",
    ]  # fmt: skip
    later = WorkdaysOfMonthTimetable(
        15, -1, timezone="UTC", roll="after", holidays=[date(2026, 6, 1)]
    )
    assert instants(later, "2026-05-20", 4) == [
        "06-02 00:00",
        "06-15 00:00",
        "06-30 00:00",
        "07-15 00:00",
    ]
    assert later.before(at("2026-06-02 12:00")) == at("2026-06-02")
    thirty_first = WorkdaysOfMonthTimetable(31, timezone="UTC")
    assert instants(thirty_first, "2028-02-01", 2) == ["02-29 00:00", "03-31 00:00"]
    halves = chain(
        Consecutive(payroll), TimeRestriction(at("2026-05-01"), None, True), "2027-01-01", 3
    )
    assert [info.logical_date.day for info in halves] == [15, 29, 15]


@pytest.mark.parametrize("days", [(), (0,), (32,), ("15",), (True,)])
def test_days_of_a_month_are_numbers_from_1_to_31_or_from_the_end(days: tuple[object, ...]) -> None:
    with pytest.raises(DagError):
        WorkdaysOfMonthTimetable(*days, timezone="UTC")


crons = st.builds(
    lambda minute, hour, day, zone: cron(f"{minute} {hour} * * {day}", zone),
    st.sampled_from(["0", "0,30", "*/15"]),
    st.sampled_from(["*", "0", "2", "*/6", "1-3"]),
    st.sampled_from(["*", "mon-fri", "sun"]),
    st.sampled_from(["UTC", "America/Santiago", "Australia/Lord_Howe", "Europe/Paris"]),
)
combinations: st.SearchStrategy[HasTicks] = st.recursive(
    crons,
    lambda inner: st.one_of(
        st.builds(AnyOf, inner, inner),
        st.builds(Except, inner, crons),
        st.builds(lambda one: AllOf(one, cron("*/30 * * * *")), inner),
        st.builds(lambda one: ExceptDays(one, [date(2026, 3, 29)], timezone="UTC"), inner),
        st.builds(Consecutive, inner),
    ),
    max_leaves=4,
)
moments = st.integers(0, 400 * 1440).map(lambda n: at("2025-12-01") + n * timedelta(minutes=1))


def named(timetable: HasTicks, moment: datetime) -> bool:
    """Return whether the timetable has a tick at the moment, without the combinations' own `is_due_at`."""
    match timetable:
        case AnyOf():
            return any(named(one, moment) for one in timetable.timetables)
        case AllOf():
            return all(named(one, moment) for one in timetable.timetables)
        case Except():
            return named(timetable.timetable, moment) and not named(timetable.without, moment)
        case ExceptDays():
            return named(timetable.timetable, moment) and moment.date() not in timetable.days
        case Consecutive():
            return named(timetable.timetable, moment)
    return timetable.is_due_at(moment)


@pytest.mark.full
@given(combinations, moments)
@settings(max_examples=12, deadline=None)
def test_a_combination_names_what_its_parts_say_in_both_directions(
    timetable: HasTicks, moment: datetime
) -> None:
    quarter = timedelta(minutes=15)
    grid = moment.replace(minute=0)
    expected = [one for n in range(100) if named(timetable, one := grid + n * quarter)]
    found, last = [], grid - timedelta(seconds=1)
    while (last := timetable.after(last)) is not None and last < grid + 100 * quarter:
        found.append(last)
    assert found == expected
    back, first = [], grid + 100 * quarter
    while (first := timetable.before(first)) is not None and first >= grid:
        back.append(first)
    assert back[::-1] == expected


@pytest.mark.full
@given(
    combinations, moments, st.booleans(), st.lists(st.integers(0, 3 * 1440), min_size=3, max_size=6)
)
@settings(max_examples=25, deadline=None)
def test_rolled_up_runs_cover_time_without_a_gap_or_a_repeat(
    timetable: HasTicks, moment: datetime, catchup: bool, delays: list[int]
) -> None:
    rolled, last, now = RollUp(timetable), None, moment
    for delay in delays:
        with time_machine.travel(now, tick=False):
            info = rolled.next_dagrun_info(
                last_automated_data_interval=last,
                restriction=TimeRestriction(moment - 3 * DAY, None, catchup),
            )
        if info is None:
            return
        assert last is None or info.data_interval.start == last.end
        assert info.data_interval.start < info.data_interval.end == info.run_after
        following = timetable.after(info.run_after)
        assert info.run_after > now or following is None or following > now
        last, now = info.data_interval, max(now, info.run_after) + delay * timedelta(minutes=1)


def test_the_wishes_of_aip_39_are_answered_as_their_author_wanted() -> None:
    """The tables of AIP-39: workdays with the data of the day, and pay twice a month."""
    weekdays = AfterWorkdayTimetable(timezone="UTC")
    since = TimeRestriction(at("2021-03-01"), None, catchup=True)
    table = [
        (f"{info.logical_date:%A}", f"{info.run_after:%A %H:%M}")
        for info in chain(weekdays, since, "2022-01-01", 6)
    ]
    assert table == [
        ("Monday", "Tuesday 00:00"), ("Tuesday", "Wednesday 00:00"), ("Wednesday", "Thursday 00:00"),
        ("Thursday", "Friday 00:00"), ("Friday", "Saturday 00:00"), ("Monday", "Tuesday 00:00"),
    ]  # fmt: skip
    # AIP-39 asks for the "15th or last working day before". In 2021, 15 May is a Saturday, and 15 August a Sunday.
    pay = WorkdaysOfMonthTimetable(15, timezone="UTC")
    assert [day[:5] for day in instants(pay, "2021-03-16", 6)] == [
        "04-15", "05-14", "06-15", "07-15", "08-13", "09-15",
    ]  # fmt: skip
