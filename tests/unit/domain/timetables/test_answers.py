"""The answers of each timetable on plain days, and the rules that are easily missed."""

from datetime import UTC, datetime, timedelta

import pytest
import time_machine

from triggerer.errors import DagError
from triggerer.timetables import (
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
)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def answer(
    timetable: Timetable,
    now: str,
    *,
    last: tuple[str, str] | None = None,
    earliest: str | None = None,
    latest: str | None = None,
    catchup: bool = False,
) -> DagRunInfo | None:
    with time_machine.travel(at(now), tick=False):
        return timetable.next_dagrun_info(
            last_automated_data_interval=last and DataInterval(at(last[0]), at(last[1])),
            restriction=TimeRestriction(earliest and at(earliest), latest and at(latest), catchup),
        )


def run(start: str, end: str | None = None) -> DagRunInfo:
    return DagRunInfo.interval(at(start), at(end or start))


DAILY_INTERVALS = CronDataIntervalTimetable("@daily", timezone="UTC")
HOURLY = CronTriggerTimetable("@hourly", timezone="UTC")
DAILY = CronTriggerTimetable("@daily", timezone="UTC")


def test_a_run_knows_its_logical_date() -> None:
    assert run("2026-01-01", "2026-01-02").logical_date == at("2026-01-01")


def test_only_an_intervals_start_is_compared_with_latest() -> None:
    kwargs = {"now": "2026-03-10 12:00", "last": ("2026-03-08", "2026-03-09")}
    assert answer(DAILY_INTERVALS, latest="2026-03-09", **kwargs) == run("2026-03-09", "2026-03-10")
    assert answer(DAILY_INTERVALS, latest="2026-03-08 23:59", **kwargs) is None
    days = DeltaDataIntervalTimetable(timedelta(days=1))
    assert answer(days, latest="2026-03-09", **kwargs) == run("2026-03-09", "2026-03-10")
    assert answer(days, latest="2026-03-08 23:59", **kwargs) is None


@pytest.mark.parametrize(
    "timetable", [DAILY_INTERVALS, DeltaDataIntervalTimetable(timedelta(hours=1))]
)
def test_intervals_with_catch_up_and_no_start_have_no_first_run(timetable: Timetable) -> None:
    assert answer(timetable, "2026-03-10 12:00", catchup=True) is None


def test_intervals_without_catch_up_begin_with_the_last_that_is_over() -> None:
    assert answer(DAILY_INTERVALS, "2026-03-10 12:00") == run("2026-03-09", "2026-03-10")
    assert answer(DAILY_INTERVALS, "2026-03-10 00:00") == run("2026-03-09", "2026-03-10")


@pytest.mark.parametrize(
    ("timetable", "now", "first"),
    [
        (HOURLY, "2026-03-10 12:06", "2026-03-10 12:00"),  # a tenth of an hour is more than 5 min
        (HOURLY, "2026-03-10 12:06:01", "2026-03-10 13:00"),
        (DAILY, "2026-03-10 02:24", "2026-03-10"),
        (DAILY, "2026-03-10 02:25", "2026-03-11"),
        (CronTriggerTimetable("*/20 * * * *", timezone="UTC"), "2026-03-10 12:05", "2026-03-10 12:00"),
        (CronTriggerTimetable("*/20 * * * *", timezone="UTC"), "2026-03-10 12:06", "2026-03-10 12:20"),
    ],
)  # fmt: skip
def test_a_cron_trigger_without_a_start_takes_the_tick_just_past(
    timetable: Timetable, now: str, first: str
) -> None:
    """The tick may be at most five minutes old, or a tenth of the gap between two ticks if that is longer."""
    assert answer(timetable, now) == run(first)
    assert answer(timetable, now, catchup=True) == run(first)


def test_run_immediately_takes_the_tick_past_however_long_ago_or_within_a_bound() -> None:
    always = CronTriggerTimetable("@daily", timezone="UTC", run_immediately=True)
    assert answer(always, "2026-03-10 23:59") == run("2026-03-10")
    hour = CronTriggerTimetable("@daily", timezone="UTC", run_immediately=timedelta(hours=1))
    assert answer(hour, "2026-03-10 01:00") == run("2026-03-10")
    assert answer(hour, "2026-03-10 01:01") == run("2026-03-11")


def test_a_cron_trigger_with_a_start_and_no_catch_up_runs_the_last_tick_or_waits_for_the_start() -> (
    None
):
    now = "2026-03-10 12:30"
    assert answer(HOURLY, now, earliest="2026-01-01") == run("2026-03-10 12:00")
    assert answer(HOURLY, now, earliest="2026-03-10 14:10") == run("2026-03-10 15:00")
    assert answer(HOURLY, now, earliest="2026-01-01", catchup=True) == run("2026-01-01")


def test_missed_ticks_are_made_up_for_one_by_one_or_only_the_last() -> None:
    last = ("2026-03-10 02:00", "2026-03-10 02:00")
    kwargs = {"now": "2026-03-10 12:30", "last": last, "earliest": "2026-01-01"}
    assert answer(HOURLY, catchup=True, **kwargs) == run("2026-03-10 03:00")
    assert answer(HOURLY, catchup=False, **kwargs) == run("2026-03-10 12:00")


def test_the_interval_of_a_trigger_ends_with_its_tick() -> None:
    timetable = CronTriggerTimetable("@daily", timezone="UTC", interval=timedelta(hours=6))
    assert answer(timetable, "2026-03-10 00:01") == run("2026-03-09 18:00", "2026-03-10")
    manual = timetable.infer_manual_data_interval(run_after=at("2026-03-10 07:00"))
    assert manual == (at("2026-03-10 01:00"), at("2026-03-10 07:00"))


def test_deltas_without_catch_up_align_with_the_epoch_or_fire_now() -> None:
    seven = timedelta(hours=7)
    start = datetime.fromtimestamp(7 * 3600 * 70000, UTC)
    now = start + seven + timedelta(hours=3)
    assert answer(DeltaDataIntervalTimetable(seven), now.replace(tzinfo=None).isoformat()) == (
        DagRunInfo.interval(start, start + seven)
    )
    assert answer(DeltaTriggerTimetable(seven), "2026-03-10 12:34:56") == run("2026-03-10 12:34:56")
    last = ("2026-03-10 12:00", "2026-03-10 12:00")
    assert answer(DeltaTriggerTimetable(seven), "2026-03-10 12:34", last=last) == run(
        "2026-03-10 19:00"
    )


def test_several_crons_give_one_run_where_they_meet_and_only_the_last_that_was_missed() -> None:
    timetable = MultipleCronTriggerTimetable("0 * * * *", "0,30 12 * * *", timezone="UTC")
    last = ("2026-03-10 11:00", "2026-03-10 11:00")
    assert answer(timetable, "2026-03-10 11:10", last=last) == run("2026-03-10 12:00")
    assert answer(timetable, "2026-03-10 12:40", last=last) == run("2026-03-10 12:30")
    assert answer(timetable, "2026-03-10 12:40", last=last, catchup=True) == run("2026-03-10 12:00")


def test_events_run_in_order_each_once_whatever_order_they_were_given_in() -> None:
    dates = [at("2026-05-01"), at("2026-03-01"), at("2026-05-01"), at("2026-04-01")]
    timetable = EventsTimetable(dates)
    kwargs = {"now": "2026-03-15"}
    assert answer(timetable, **kwargs) == run("2026-04-01")
    assert answer(timetable, catchup=True, **kwargs) == run("2026-03-01")
    last = ("2026-04-01", "2026-04-01")
    assert answer(timetable, last=last, **kwargs) == run("2026-05-01")
    assert answer(timetable, last=last, latest="2026-04-30", **kwargs) is None
    assert answer(timetable, last=("2026-05-01", "2026-05-01"), **kwargs) is None
    assert answer(EventsTimetable([]), **kwargs) is None


def test_manual_runs_of_events_may_be_restricted_to_events() -> None:
    dates = [at("2026-03-01"), at("2026-04-01")]
    free, bound = EventsTimetable(dates), EventsTimetable(dates, restrict_to_events=True)
    for moment, event in (("2026-02-01", "2026-03-01"), ("2026-03-01", "2026-03-01"),
                          ("2026-03-20", "2026-03-01"), ("2027-01-01", "2026-04-01")):  # fmt: skip
        assert free.infer_manual_data_interval(run_after=at(moment)) == (at(moment), at(moment))
        assert bound.infer_manual_data_interval(run_after=at(moment)) == (at(event), at(event))


def test_once_runs_at_the_start_with_or_without_catch_up_or_now() -> None:
    once = OnceTimetable()
    assert answer(once, "2026-03-10", earliest="2020-01-01") == run("2020-01-01")
    assert answer(once, "2026-03-10 12:00") == run("2026-03-10 12:00")
    assert answer(once, "2026-03-10", last=("2026-01-01", "2026-01-01")) is None
    assert answer(once, "2026-03-10", earliest="2020-01-02", latest="2020-01-01") is None


def test_never_runs_never() -> None:
    assert answer(NullTimetable(), "2026-03-10", earliest="2020-01-01", catchup=True) is None
    assert not NullTimetable().can_be_scheduled


def test_continuous_runs_follow_one_another_one_at_a_time() -> None:
    continuous = ContinuousTimetable()
    assert continuous.active_runs_limit == 1
    assert answer(continuous, "2026-03-10", earliest="2026-03-09") == run(
        "2026-03-09", "2026-03-10"
    )
    last = ("2026-03-09", "2026-03-10")
    assert answer(continuous, "2026-03-11", last=last) == run("2026-03-10", "2026-03-11")
    assert answer(continuous, "2026-03-11", last=last, latest="2026-03-10 12:00") is None


def test_the_manual_interval_of_a_data_interval_cron_is_the_last_that_is_over() -> None:
    assert DAILY_INTERVALS.infer_manual_data_interval(run_after=at("2026-03-10 01:00")) == (
        at("2026-03-09"),
        at("2026-03-10"),
    )


@pytest.mark.parametrize(
    ("expression", "now", "due"),
    [
        ("0 0 L * *", "2028-02-10", "2028-02-29"),  # the last day, also of a leap year's February
        ("0 9 * * mon#2", "2026-03-01", "2026-03-09 09:00"),
        ("0 9 * * L5", "2026-03-01", "2026-03-27 09:00"),
        ("0 9 * JAN-feb tue", "2026-03-01", "2027-01-05 09:00"),
        ("30 15 10 * 7", "2026-03-01 16:00", "2026-03-08 15:30"),  # a day of either kind
        ("15 10 * * * 30", "2026-03-01 10:20", "2026-03-02 10:15:30"),  # the sixth field: seconds
        ("@quarterly", "2026-03-01", "2026-04-01"),
        ("@midnight", "2026-03-01 12:00", "2026-03-02"),
        ("@annually", "2026-03-01", "2027-01-01"),
        ("0 12 29 2 *", "2026-03-01", "2028-02-29 12:00"),
    ],
)
def test_cron_has_last_days_numbered_weekdays_names_six_fields_and_presets(
    expression: str, now: str, due: str
) -> None:
    timetable = CronTriggerTimetable(expression, timezone="UTC")
    last = (now, now)
    assert answer(timetable, now, last=last) == run(due)


@pytest.mark.parametrize(
    "expression",
    ["", "* * * *", "60 * * * *", "0 0 31 2 *", "@never", "R * * * *", "H * * * *", "0 0 * * mom", 5, None],
)  # fmt: skip
def test_an_expression_that_says_nothing_is_refused_at_once(expression: object) -> None:
    with pytest.raises(DagError):
        CronTriggerTimetable(expression, timezone="UTC")


@pytest.mark.parametrize(
    "zone", ["Europe/Nowhere", "../etc/passwd", "America", "", None, True, 1e9]
)
def test_a_zone_that_does_not_exist_is_refused(zone: object) -> None:
    with pytest.raises(DagError):
        CronTriggerTimetable("@daily", timezone=zone)


@pytest.mark.parametrize("delta", [timedelta(0), timedelta(seconds=-1), "1 day", None])
def test_a_delta_is_more_than_nothing(delta: object) -> None:
    for kind in (DeltaTriggerTimetable, DeltaDataIntervalTimetable):
        with pytest.raises(DagError):
            kind(delta)


@pytest.mark.parametrize("start", ["9901-01-01", "9999-12-31T23:59:59.999999"])
def test_at_the_end_of_the_calendar_a_cron_expression_names_no_date(start: str) -> None:
    timetable = CronTriggerTimetable("0 0 29 2 *", timezone="Europe/Berlin")
    assert answer(timetable, "2026-11-26", earliest=start) is None
    last = answer(timetable, "2026-11-26", earliest="9899-12-31")
    assert last is not None
    assert last.run_after == at("9904-02-28T23:00")
