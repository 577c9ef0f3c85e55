"""Bugs that other projects had with time, as far as a timetable can have them."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
import time_machine
from croniter import croniter

from tests.airflow.timetable_cases import clock_changes
from triggerer.errors import DagError
from triggerer.timetables import (
    AfterWorkdayTimetable,
    Consecutive,
    ContinuousTimetable,
    CronDataIntervalTimetable,
    CronTriggerTimetable,
    DagRunInfo,
    DataInterval,
    DeltaDataIntervalTimetable,
    DeltaTriggerTimetable,
    EventsTimetable,
    MultipleCronTriggerTimetable,
    OnceTimetable,
    TimeRestriction,
    Timetable,
)

FREE = TimeRestriction(None, None, catchup=False)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
PERIODIC = [
    CronTriggerTimetable("* * * * *", timezone="Europe/Paris"),
    CronDataIntervalTimetable("*/5 * * * *", timezone="America/Santiago"),
    CronDataIntervalTimetable("30 2 * * *", timezone="Australia/Lord_Howe"),
    MultipleCronTriggerTimetable("0 * * * *", "30 6 * * mon", timezone="America/New_York"),
    DeltaTriggerTimetable(timedelta(seconds=7)),
    DeltaDataIntervalTimetable(timedelta(minutes=10)),
]
each_periodic = pytest.mark.parametrize("timetable", PERIODIC, ids=lambda one: type(one).__name__)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def ask(
    timetable: Timetable, now: datetime, last: DataInterval | None, restriction: TimeRestriction
) -> DagRunInfo | None:
    with time_machine.travel(now, tick=False):
        return timetable.next_dagrun_info(
            last_automated_data_interval=last, restriction=restriction
        )


def runs(timetable: Timetable, start: str, end: str) -> list[str]:
    """Return the local dates of all runs with catch-up."""
    restriction = TimeRestriction(at(start), at(end), catchup=True)
    last, found = None, []
    while (info := ask(timetable, at(start), last, restriction)) is not None:
        last = info.data_interval
        found.append(f"{info.run_after.astimezone(timetable.timezone):%d. %H:%M}")
    return found


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Count the dates that croniter was asked for."""
    count = [0]

    def counting(step):
        def counted(self, *args, **kwargs):
            count[0] += 1
            return step(self, *args, **kwargs)

        return counted

    for name in ("get_next", "get_prev"):
        monkeypatch.setattr(croniter, name, counting(getattr(croniter, name)))
    return count


@pytest.mark.rule("a DAG that has missed more than 100 runs is never scheduled again")
@each_periodic
def test_after_thousands_of_missed_fires_the_next_run_is_the_last_of_them(
    timetable: Timetable,
) -> None:
    first = ask(timetable, at("2026-01-01"), None, FREE)
    assert first is not None
    now = at("2026-04-01 12:00:03")
    info = ask(timetable, now, first.data_interval, FREE)
    assert info is not None
    assert now - timedelta(days=1) < info.run_after <= now
    following = ask(timetable, now, info.data_interval, FREE)
    assert following is not None
    assert following.run_after > now - timedelta(minutes=10)


@pytest.mark.rule("the clock jumps years ahead, and every missed run is enumerated")
@each_periodic
def test_a_clock_that_jumps_decades_costs_no_more_than_a_second(
    timetable: Timetable, steps: list[int]
) -> None:
    last = DataInterval(at("1996-02-28"), at("1996-02-28 00:10"))
    info = ask(timetable, at("2026-07-01"), last, FREE)
    assert info is not None
    assert info.run_after > at("2026-06-30")
    # With catch-up, the timetable moves one step at each call.
    catching_up = TimeRestriction(at("1990-01-01"), None, catchup=True)
    for _ in range(3):
        info = ask(timetable, at("2026-07-01"), last, catching_up)
        assert info is not None
        assert last.end < info.run_after < last.end + timedelta(days=2)
        last = info.data_interval
    assert steps[0] < 80


@pytest.mark.rule(
    "an hourly schedule becomes daily, and the next run has the date of an existing run"
)
@pytest.mark.parametrize("catchup", [False, True])
def test_hourly_becomes_daily_and_the_next_run_has_a_date_of_its_own(catchup: bool) -> None:
    """Dates also stay unique after a change from triggers to intervals, and from intervals to triggers."""
    start = at("2026-03-01")
    allowed = TimeRestriction(start, None, catchup)
    pairs = [
        (PERIODIC[1], CronDataIntervalTimetable("@daily", timezone="UTC")),
        (CronTriggerTimetable("@hourly", timezone="UTC"), CronDataIntervalTimetable("@daily", timezone="UTC")),
        (CronTriggerTimetable("@daily", timezone="UTC"), CronDataIntervalTimetable("@daily", timezone="UTC")),
        (CronDataIntervalTimetable("@daily", timezone="UTC"), CronTriggerTimetable("@daily", timezone="UTC")),
        (DeltaTriggerTimetable(HOUR), DeltaDataIntervalTimetable(timedelta(days=1))),
        (DeltaDataIntervalTimetable(HOUR), CronDataIntervalTimetable("@weekly", timezone="UTC")),
    ]  # fmt: skip
    for before, after in pairs:
        now, last, dates = start, None, []
        for timetable in [before] * 30 + [after] * 5:
            info = ask(timetable, now, last, allowed)
            assert info is not None
            dates.append(info.logical_date)
            last, now = info.data_interval, max(now, info.run_after)
        assert dates == sorted(set(dates)), (before, after)


@pytest.mark.rule(
    "a DAG is paused while a run is due, then resumed: it gets two runs, or misses the next"
)
@pytest.mark.parametrize("kind", [CronTriggerTimetable, CronDataIntervalTimetable])
def test_paused_over_fires_then_resumed_is_one_run_for_the_last_and_the_coming_one(
    kind: type[CronTriggerTimetable],
) -> None:
    timetable = kind("0 6 * * *", timezone="UTC")
    before = ask(
        timetable, at("2026-03-10 06:00"), None, TimeRestriction(at("2026-01-01"), None, False)
    )
    assert before is not None
    assert before.run_after == at("2026-03-10 06:00")
    resumed = at("2026-03-14 09:00")
    made_up = ask(timetable, resumed, before.data_interval, FREE)
    assert made_up is not None
    assert made_up.run_after == at("2026-03-14 06:00")
    coming = ask(timetable, resumed, made_up.data_interval, FREE)
    assert coming is not None
    assert coming.run_after == at("2026-03-15 06:00")


def paris(expression: str) -> CronTriggerTimetable:
    return CronTriggerTimetable(expression, timezone="Europe/Paris")


GAP = ("2026-03-28 12:00", "2026-03-30 12:00")  # 02:00 becomes 03:00 on the 29th
OVERLAP = ("2026-10-24 12:00", "2026-10-26 12:00")  # 03:00 becomes 02:00 on the 25th


@pytest.mark.rule("a DST gap or overlap makes a timetable skip, repeat or stall")
@pytest.mark.parametrize(
    ("expression", "stretch", "expected"),
    [
        ("30 2 * * *", GAP, ["29. 03:30", "30. 02:30"]),
        ("*/20 2 * * *", GAP, ["29. 03:00", "30. 02:00", "30. 02:20", "30. 02:40"]),
        ("30 1,2,3 * * *", GAP, ["29. 01:30", "29. 03:30", "30. 01:30", "30. 02:30", "30. 03:30"]),
        ("30 2 * * *", OVERLAP, ["25. 02:30", "26. 02:30"]),
        ("0 */8 * * *", GAP, ["28. 16:00", "29. 00:00", "29. 08:00", "29. 16:00", "30. 00:00", "30. 08:00"]),
    ],
)  # fmt: skip
def test_a_date_is_one_run_also_where_clocks_change(
    expression: str, stretch: tuple[str, str], expected: list[str]
) -> None:
    assert runs(paris(expression), *stretch) == expected


@pytest.mark.rule("a DST gap or overlap makes a timetable skip, repeat or stall")
def test_every_hour_is_every_hour_that_passes_also_where_clocks_change() -> None:
    stretch = ("2026-03-29 00:00", "2026-03-29 03:00")
    assert runs(paris("0 * * * *"), *stretch) == [
        "29. 01:00",
        "29. 03:00",
        "29. 04:00",
        "29. 05:00",
    ]
    stretch = ("2026-10-24 23:00", "2026-10-25 02:00")
    assert runs(paris("0 * * * *"), *stretch) == [
        "25. 01:00",
        "25. 02:00",
        "25. 02:00",
        "25. 03:00",
    ]


@pytest.mark.rule("a DST gap or overlap makes a timetable skip, repeat or stall")
def test_intervals_leave_nothing_out_and_repeat_nothing_where_clocks_change() -> None:
    for zone in ("Europe/Paris", "America/Santiago", "Australia/Lord_Howe", "America/Havana"):
        for expression in ("@daily", "30 2 * * *", "0 * * * *", "15,45 1,2 * * *"):
            timetable = CronDataIntervalTimetable(expression, timezone=zone)
            for change in clock_changes(zone)[-6:]:
                last = None
                allowed = TimeRestriction(change - DAY, change + DAY, catchup=True)
                while (info := ask(timetable, change, last, allowed)) is not None:
                    assert info.data_interval.start < info.data_interval.end == info.run_after
                    if last is not None:
                        assert info.data_interval.start == last.end
                    last = info.data_interval


@pytest.mark.rule("a DST gap or overlap makes a timetable skip, repeat or stall")
@pytest.mark.parametrize("minutes", range(-90, 91, 15))
def test_whenever_a_scheduler_asks_around_a_change_no_run_is_in_the_future_and_made_up_for(
    minutes: int,
) -> None:
    """In apache/airflow#70089, the last tick before the current time was in the future, or an interval was empty."""
    for zone, change in (("America/New_York", at("2026-03-08 07:00")), ("America/New_York", at("2026-11-01 06:00")),
                         ("Australia/Lord_Howe", at("2026-10-03 15:30"))):  # fmt: skip
        now = change + timedelta(minutes=minutes)
        for expression in ("0 1 * * *", "0 2 * * *", "30 1,2 * * *"):
            trigger = CronTriggerTimetable(expression, timezone=zone, run_immediately=True)
            info = ask(trigger, now, None, FREE)
            assert info is not None
            assert info.run_after <= now
            intervals = CronDataIntervalTimetable(expression, timezone=zone)
            for interval in (intervals.infer_manual_data_interval(run_after=now),
                             ask(intervals, now, None, FREE).data_interval):  # fmt: skip
                assert interval.start < interval.end <= now


def test_the_29th_of_february_is_in_leap_years_only() -> None:
    timetable = CronTriggerTimetable("0 12 29 2 *", timezone="UTC")
    last, years = None, []
    for _ in range(4):
        info = ask(timetable, at("1996-01-01"), last, TimeRestriction(at("1996-01-01"), None, True))
        assert info is not None
        years.append(info.run_after.year)
        last = info.data_interval
    assert years == [1996, 2000, 2004, 2008]
    # 1900 and 2100 are no leap years.
    last = DataInterval.exact(at("2096-03-01"))
    info = ask(timetable, at("2096-03-01"), last, FREE)
    assert info is not None
    assert info.run_after == at("2104-02-29 12:00")


def test_an_end_date_ends_the_runs_and_an_earlier_one_asks_for_none() -> None:
    timetable = paris("0 6 * * *")
    ended = TimeRestriction(at("2026-01-01"), at("2026-03-01"), catchup=True)
    last = DataInterval.exact(at("2026-02-28 05:00"))
    info = ask(timetable, at("2026-06-01"), last, ended)
    assert info is None
    assert ask(timetable, at("2026-06-01"), None, ended._replace(latest=at("2025-01-01"))) is None


def test_a_cron_of_years_that_are_over_asks_for_nothing_and_raises_nothing() -> None:
    timetable = CronTriggerTimetable("0 0 1 1 * 0 2020-2022", timezone="UTC")
    assert ask(timetable, at("2026-01-01"), DataInterval.exact(at("2022-01-01")), FREE) is None
    assert ask(timetable, at("2026-01-01"), None, FREE) is None
    intervals = CronDataIntervalTimetable("0 0 1 1 * 0 2020-2022", timezone="UTC")
    assert (
        ask(intervals, at("2026-01-01"), DataInterval(at("2021-01-01"), at("2022-01-01")), FREE)
        is None
    )
    future = CronDataIntervalTimetable("0 0 1 1 * 0 2040-2042", timezone="UTC")
    info = ask(future, at("2026-01-01"), None, FREE)
    assert info is not None
    assert info.data_interval == (at("2040-01-01"), at("2041-01-01"))
    now = at("2026-01-01")
    assert future.infer_manual_data_interval(run_after=now) == (now, now)


@pytest.mark.parametrize(
    "timetable",
    [*PERIODIC, OnceTimetable(), ContinuousTimetable(), EventsTimetable([at("2026-03-29 10:00")]),
     AfterWorkdayTimetable(timezone="UTC"), Consecutive(PERIODIC[0])],
    ids=lambda one: type(one).__name__,
)  # fmt: skip
def test_a_start_in_another_zone_is_an_instant_like_others(timetable: Timetable) -> None:
    """Adding a day to Paris's clock in the night of a change would add only 23 hours."""
    start = at("2026-03-28 12:00")
    paris_start = start.astimezone(ZoneInfo("Europe/Paris"))
    last = DataInterval(start, start + HOUR)
    paris_last = DataInterval(*(one.astimezone(paris_start.tzinfo) for one in last))
    for now in (start, start + DAY, start + 3 * DAY):
        for catchup in (False, True):
            for one, other in ((None, None), (last, paris_last)):
                expected = ask(timetable, now, one, TimeRestriction(start, None, catchup))
                found = ask(timetable, now, other, TimeRestriction(paris_start, None, catchup))
                assert found == expected
                if found is not None:
                    instants = (found.run_after, *found.data_interval)
                    assert {one.tzinfo for one in instants} == {UTC}
    with pytest.raises(DagError, match="time zone"):
        ask(timetable, start, None, TimeRestriction(start.replace(tzinfo=None), None, catchup=True))
