"""Runs that are due by time, or by time and assets, and the reasons that delay a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine

from triggerer.domain.assets import Asset
from triggerer.domain.conditions import AssetAll
from triggerer.domain.runs import RunType
from triggerer.domain.schedules import OnAssets, OnBoth, OnEither, OnPartitions, OnTime, Schedule
from triggerer.domain.timetables import (
    ContinuousTimetable,
    CronDataIntervalTimetable,
    CronPartitionTimetable,
    CronTriggerTimetable,
    DagRunInfo,
    DataInterval,
    DeltaTriggerTimetable,
    OnceTimetable,
    TimeRestriction,
    Timetable,
)
from triggerer.errors import RowRefused
from triggerer.scheduler.decide import look
from triggerer.scheduler.holds import Hold, HoldKind
from triggerer.scheduler.looks import DagSnapshot, LastRun, Look, WaitingAsset

A, B = Asset("x-test://a", name="a"), Asset("x-test://b", name="b")
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
MIDNIGHT = datetime(2026, 1, 10, tzinfo=UTC)
HOURLY = CronDataIntervalTimetable("0 * * * *", timezone="UTC")
DAILY = CronDataIntervalTimetable("0 0 * * *", timezone="UTC")
AT_SIX = CronTriggerTimetable("0 6 * * *", timezone="UTC")


@pytest.fixture(autouse=True)
def host() -> Iterator[time_machine.Traveller]:
    """The host's clock, by which timetables tell the past from the future."""
    with time_machine.travel(MIDNIGHT, tick=False) as traveller:
        yield traveller


class Dag:
    """A DAG, and a clock that the test sets. `at` only looks which runs are due; `run` also creates them."""

    def __init__(self, host: time_machine.Traveller, schedule: Schedule, **columns: Any) -> None:
        self.host = host
        restriction = TimeRestriction(
            columns.pop("start", None), columns.pop("end", None), columns.pop("catchup", False)
        )
        self.dag = DagSnapshot("d", schedule, MIDNIGHT, restriction=restriction, **columns)
        self.made: list[tuple[str, datetime | None]] = []

    def at(self, now: datetime) -> Look:
        self.host.move_to(now)
        self.dag = replace(self.dag, now=now)
        return look(self.dag, at_most=32, bound=1_000)

    def run(self, now: datetime) -> list[datetime]:
        """Look at `now`, make what is due, and return the logical dates."""
        found = self.at(now)
        for run in found.runs:
            self.dag = replace(self.dag, last_run_at=now, last_kind=run.run_type)
            if run.info is not None:
                interval = run.info.data_interval
                after = run.run_after or now
                self.dag = replace(self.dag, last_interval=interval, last_run_after=after)
            if run.asset_ids:
                self.dag = replace(self.dag, waiting=())
        self.dag = replace(self.dag, stored_info=found.next_info)
        return [run.info.logical_date for run in found.runs if run.info is not None]

    def event(self, *assets: Asset, at: datetime | None = None) -> None:
        waiting = tuple(
            WaitingAsset(number, asset.name, asset.uri, 1) for number, asset in enumerate(assets)
        )
        self.dag = replace(self.dag, waiting=waiting, newest_event=at or self.dag.now)


def kinds(found: Look) -> list[HoldKind]:
    return [hold.kind for hold in found.holds]


def test_a_run_is_due_when_its_data_interval_is_over(host: time_machine.Traveller) -> None:
    dag = Dag(host, OnTime(HOURLY), start=MIDNIGHT)
    assert dag.run(MIDNIGHT) == []
    found = dag.at(MIDNIGHT + HOUR - timedelta(microseconds=1))
    assert found.runs == ()
    assert found.wake_at(dag.dag.now) == MIDNIGHT + HOUR
    assert dag.run(MIDNIGHT + HOUR) == [MIDNIGHT]
    assert dag.run(MIDNIGHT + HOUR) == []
    assert dag.run(MIDNIGHT + 2 * HOUR) == [MIDNIGHT + HOUR]


@pytest.mark.rule("a DAG that has missed more than 100 runs is never scheduled again")
def test_with_catch_up_all_that_was_missed_is_made_in_order_a_few_at_a_time(
    host: time_machine.Traveller,
) -> None:
    dag = Dag(host, OnTime(HOURLY), start=MIDNIGHT, catchup=True, max_active_runs=1_000)
    now, made = MIDNIGHT + 250 * HOUR, []
    while found := dag.run(now):
        assert len(found) <= 32
        made += found
    assert made == [MIDNIGHT + n * HOUR for n in range(250)]


@pytest.mark.rule("the clock jumps years ahead, and every missed run is enumerated")
def test_without_catch_up_a_jump_of_years_makes_one_run_and_the_next_is_on_time(
    host: time_machine.Traveller,
) -> None:
    dag = Dag(host, OnTime(HOURLY), start=MIDNIGHT)
    assert dag.run(MIDNIGHT + HOUR) == [MIDNIGHT]
    later = MIDNIGHT + 3_650 * DAY + timedelta(minutes=20)
    assert dag.run(later) == [MIDNIGHT + 3_650 * DAY - HOUR]
    assert dag.run(later) == []
    assert dag.run(later + HOUR) == [MIDNIGHT + 3_650 * DAY]


@pytest.mark.rule("the clock jumps years ahead, and every missed run is enumerated")
def test_a_clock_that_was_set_back_does_not_wait_until_it_has_caught_up(
    host: time_machine.Traveller,
) -> None:
    dag = Dag(host, OnTime(HOURLY), start=MIDNIGHT, min_run_gap=timedelta(minutes=1))
    dag.run(MIDNIGHT + HOUR)
    at_home = dag.dag
    dag.run(MIDNIGHT + 3_650 * DAY)
    ahead = dag.dag
    # Restore the DAG from before the jump, but keep the values that were stored while the clock was ahead.
    dag.dag = replace(
        at_home, stored_info=ahead.stored_info, last_run_at=ahead.last_run_at, now=at_home.now
    )
    assert dag.run(MIDNIGHT + 2 * HOUR) == [MIDNIGHT + HOUR]


@pytest.mark.rule(
    "an hourly schedule becomes daily, and the next run has the date of an existing run"
)
@pytest.mark.parametrize("daily", [DAILY, CronTriggerTimetable("0 0 * * *", timezone="UTC")])
@pytest.mark.parametrize("catchup", [False, True])
def test_hourly_becomes_daily_and_goes_on(
    host: time_machine.Traveller, daily: Timetable, catchup: bool
) -> None:
    dag = Dag(host, OnTime(HOURLY), start=MIDNIGHT - DAY, catchup=catchup, max_active_runs=99)
    assert dag.run(MIDNIGHT)[-1] == MIDNIGHT - HOUR
    # The daily timetable's next run would be due at MIDNIGHT, the instant of the last hourly run.
    before = DagRunInfo(MIDNIGHT, DataInterval(MIDNIGHT - DAY, MIDNIGHT))
    dag.dag = replace(dag.dag, schedule=OnTime(daily), stored_info=before)
    assert dag.run(MIDNIGHT) == []
    (made,) = dag.run(MIDNIGHT + DAY)
    assert made in (MIDNIGHT, MIDNIGHT + DAY)


@pytest.mark.rule(
    "a DAG is paused while a run is due, then resumed: it gets two runs, or misses the next"
)
@pytest.mark.parametrize("timetable", [HOURLY, AT_SIX, DeltaTriggerTimetable(HOUR)])
def test_paused_over_fires_and_resumed_there_is_one_run_at_most_and_then_the_coming_one(
    host: time_machine.Traveller, timetable: Timetable
) -> None:
    dag = Dag(host, OnTime(timetable), start=MIDNIGHT)
    dag.run(MIDNIGHT)
    dag.run(MIDNIGHT + 6 * HOUR)
    dag.dag = replace(dag.dag, is_paused=True)
    for hours in range(7, 90):
        found = dag.at(MIDNIGHT + hours * HOUR)
        assert (found.runs, HoldKind.PAUSED in kinds(found)) == ((), True)
        dag.run(MIDNIGHT + hours * HOUR)
    # As unpausing does.
    resumed = MIDNIGHT + 90 * HOUR + timedelta(minutes=30)
    host.move_to(resumed)
    asked = timetable.next_dagrun_info(
        last_automated_data_interval=dag.dag.last_interval, restriction=dag.dag.restriction
    )
    dag.dag = replace(dag.dag, is_paused=False, stored_info=asked)
    # There is one run: for the last missed instant, or for now.
    (made,) = dag.run(resumed)
    assert made > resumed - DAY
    assert dag.run(resumed + timedelta(seconds=1)) == []
    assert len(dag.run(resumed + DAY)) == 1


def test_a_fire_that_was_missed_while_no_scheduler_ran_is_made_late(
    host: time_machine.Traveller,
) -> None:
    """The timetable returns only future times. So at nine, the scheduler must still know the earlier answer: six."""
    dag = Dag(host, OnTime(AT_SIX), start=MIDNIGHT)
    assert dag.run(MIDNIGHT) == []
    assert dag.run(MIDNIGHT + 9 * HOUR) == [MIDNIGHT + 6 * HOUR]
    assert dag.run(MIDNIGHT + 9 * HOUR) == []
    assert dag.run(MIDNIGHT + 30 * HOUR) == [MIDNIGHT + 30 * HOUR]


def test_the_last_run_is_that_of_the_end_date(host: time_machine.Traveller) -> None:
    dag = Dag(host, OnTime(HOURLY), start=MIDNIGHT, end=MIDNIGHT + 2 * HOUR, catchup=True)
    assert dag.run(MIDNIGHT + 50 * HOUR) == [MIDNIGHT + n * HOUR for n in range(3)]
    found = dag.at(MIDNIGHT + 51 * HOUR)
    assert (found.runs, found.next_info, kinds(found)) == ((), None, [HoldKind.TIME])
    assert found.wake_at(dag.dag.now) is None


def test_once_is_once(host: time_machine.Traveller) -> None:
    dag = Dag(host, OnTime(OnceTimetable()), start=MIDNIGHT)
    assert len(dag.run(MIDNIGHT)) == 1
    assert dag.run(MIDNIGHT + DAY) == []


def test_continuous_is_one_run_after_the_other(host: time_machine.Traveller) -> None:
    dag = Dag(host, OnTime(ContinuousTimetable()))
    assert len(dag.run(MIDNIGHT)) == 1
    dag.dag = replace(dag.dag, active_runs=1)
    found = dag.at(MIDNIGHT + HOUR)
    assert (found.runs, found.waits_for_end) == ((), True)
    dag.dag = replace(dag.dag, active_runs=0)
    assert dag.run(MIDNIGHT + 2 * HOUR) == [MIDNIGHT]


def test_a_timetables_now_is_due_with_any_clock_of_the_database(
    host: time_machine.Traveller,
) -> None:
    dag = Dag(host, OnTime(DeltaTriggerTimetable(HOUR)))
    host.move_to(MIDNIGHT + timedelta(seconds=3))
    assert len(look(dag.dag, at_most=32, bound=10).runs) == 1


def test_either_makes_runs_of_both_kinds_and_time_takes_no_events(
    host: time_machine.Traveller,
) -> None:
    dag = Dag(host, OnEither(HOURLY, A), start=MIDNIGHT)
    dag.event(A)
    found = dag.at(MIDNIGHT + HOUR)
    assert [(run.run_type, run.asset_ids, run.run_after) for run in found.runs] == [
        (RunType.SCHEDULED, (), MIDNIGHT + HOUR),
        (RunType.ASSET_TRIGGERED, (0,), None),
    ]
    dag.run(MIDNIGHT + HOUR)
    found = dag.at(MIDNIGHT + HOUR)
    assert (found.runs, kinds(found)) == ((), [HoldKind.TIME, HoldKind.ASSETS])


@pytest.mark.parametrize("bounds", [{"min_run_gap": HOUR}, {"max_active_runs": 1}])
def test_of_time_and_events_that_are_always_due_neither_waits_for_more_than_one_run_of_the_other(
    host: time_machine.Traveller, bounds: dict[str, Any]
) -> None:
    dag = Dag(host, OnEither(HOURLY, A), start=MIDNIGHT - DAY, catchup=True, **bounds)
    found, dates = [], []
    for hour in range(8):
        dag.event(A)
        now = MIDNIGHT + hour * HOUR
        found += [run.run_type for run in dag.at(now).runs]
        dates += dag.run(now)
    assert found == [RunType.SCHEDULED, RunType.ASSET_TRIGGERED] * 4
    assert dates == [MIDNIGHT - DAY + n * HOUR for n in range(4)]


def test_both_is_a_run_at_the_first_moment_at_which_both_hold(
    host: time_machine.Traveller,
) -> None:
    dag = Dag(host, OnBoth(AT_SIX, AssetAll(A, B)), start=MIDNIGHT)
    assert dag.run(MIDNIGHT) == []
    dag.event(A, B)
    found = dag.at(MIDNIGHT + 5 * HOUR)
    assert (found.runs, kinds(found)) == ((), [HoldKind.TIME])
    assert found.wake_at(dag.dag.now) == MIDNIGHT + 6 * HOUR
    (run,) = dag.at(MIDNIGHT + 6 * HOUR).runs
    assert (run.run_type, run.run_after, run.asset_ids) == (RunType.ASSET_TRIGGERED, None, (0, 1))
    assert dag.run(MIDNIGHT + 6 * HOUR) == [MIDNIGHT + 6 * HOUR]
    # The next day the data is late.
    dag.event(A)
    found = dag.at(MIDNIGHT + 33 * HOUR)
    assert (found.runs, kinds(found), found.wake_at(dag.dag.now)) == ((), [HoldKind.ASSETS], None)
    dag.run(MIDNIGHT + 33 * HOUR)
    dag.event(A, B)
    assert dag.run(MIDNIGHT + 34 * HOUR) == [MIDNIGHT + 30 * HOUR]
    dag.event(A, B)
    assert dag.run(MIDNIGHT + 35 * HOUR) == []


def test_both_without_catch_up_takes_the_last_of_the_fires_that_passed_without_data(
    host: time_machine.Traveller,
) -> None:
    for catchup, first in ((False, MIDNIGHT + 2 * DAY), (True, MIDNIGHT)):
        dag = Dag(host, OnBoth(DAILY, A), start=MIDNIGHT, catchup=catchup)
        dag.run(MIDNIGHT + DAY)
        dag.event(A)
        assert dag.run(MIDNIGHT + 3 * DAY + HOUR) == [first]
        dag.event(A)
        assert len(dag.run(MIDNIGHT + 3 * DAY + 2 * HOUR)) == catchup


def test_runs_are_as_far_apart_as_was_asked_for(host: time_machine.Traveller) -> None:
    dag = Dag(host, OnAssets(A), min_run_gap=HOUR, events_per_run=1)
    dag.event(A)
    dag.run(MIDNIGHT)
    assert len(dag.at(MIDNIGHT).runs) == 0
    dag.event(A)
    found = dag.at(MIDNIGHT + HOUR / 2)
    assert (found.runs, kinds(found)) == ((), [HoldKind.GAP])
    assert found.wake_at(dag.dag.now) == MIDNIGHT + HOUR
    found = dag.at(MIDNIGHT + HOUR)
    assert len(found.runs) == 1
    assert found.wake_at(dag.dag.now) == MIDNIGHT + 2 * HOUR


def test_a_quiet_period_restarts_with_each_event_and_does_not_delay_timed_runs(
    host: time_machine.Traveller,
) -> None:
    dag = Dag(host, OnEither(HOURLY, A), start=MIDNIGHT, quiet_period=timedelta(minutes=10))
    for minutes in (0, 5, 14):
        dag.event(A, at=MIDNIGHT + timedelta(minutes=minutes))
        found = dag.at(MIDNIGHT + timedelta(minutes=minutes))
        assert (found.runs, kinds(found)) == ((), [HoldKind.TIME, HoldKind.QUIET])
        assert found.wake_at(dag.dag.now) == MIDNIGHT + timedelta(minutes=minutes + 10)
    assert len(dag.at(MIDNIGHT + timedelta(minutes=24)).runs) == 1
    dag.event(A, at=MIDNIGHT + HOUR)
    assert [run.run_type for run in dag.at(MIDNIGHT + HOUR).runs] == [RunType.SCHEDULED]


@pytest.mark.parametrize("state", ["queued", "running", "failed", "cancelled"])
def test_a_run_waits_until_the_one_before_it_has_succeeded(
    host: time_machine.Traveller, state: str
) -> None:
    dag = Dag(host, OnTime(HOURLY), start=MIDNIGHT, catchup=True, depends_on_past=True)
    assert len(dag.run(MIDNIGHT + 9 * HOUR)) == 1
    dag.dag = replace(dag.dag, last_run=LastRun("r", state))
    found = dag.at(MIDNIGHT + 9 * HOUR)
    assert (found.runs, kinds(found), found.waits_for_end) == ((), [HoldKind.PAST], True)
    dag.dag = replace(dag.dag, last_run=LastRun("r", "success"))
    assert dag.run(MIDNIGHT + 9 * HOUR) == [MIDNIGHT + HOUR]


def test_events_wait_until_the_dag_begins_and_make_no_run_after_its_end(
    host: time_machine.Traveller,
) -> None:
    dag = Dag(host, OnAssets(A), start=MIDNIGHT + HOUR, end=MIDNIGHT + 2 * HOUR)
    dag.event(A)
    assert dag.at(MIDNIGHT).wake_at(MIDNIGHT) == MIDNIGHT + HOUR
    assert len(dag.at(MIDNIGHT + HOUR).runs) == len(dag.at(MIDNIGHT + 2 * HOUR).runs) == 1
    assert dag.at(MIDNIGHT + 3 * HOUR).runs == ()


def test_all_that_holds_a_dag_is_said_at_once(host: time_machine.Traveller) -> None:
    dag = Dag(
        host,
        OnBoth(AT_SIX, AssetAll(A, B)),
        start=MIDNIGHT,
        is_paused=True,
        is_stale=True,
        max_active_runs=1,
        active_runs=2,
        min_run_gap=HOUR,
        last_run_at=MIDNIGHT,
        depends_on_past=True,
        last_run=LastRun("r", "failed"),
    )
    dag.event(A)
    found = dag.at(MIDNIGHT)
    assert kinds(found) == [
        HoldKind.STALE,
        HoldKind.PAUSED,
        HoldKind.CAP,
        HoldKind.GAP,
        HoldKind.PAST,
        HoldKind.TIME,
        HoldKind.ASSETS,
    ]
    assert found.holds[-1].reason == "no event of b is waiting"
    assert kinds(Dag(host, OnPartitions(A, {})).at(MIDNIGHT)) == [HoldKind.PARTITION]


def test_a_few_of_many_assets_are_named() -> None:
    assert Hold.assets(["a", "b"]).reason == "no event of a, b is waiting"
    reason = Hold.assets([f"a{number}" for number in range(1_500)]).reason
    assert reason.startswith("no event of a0, a1, ")
    assert reason.endswith(", a19 and 1,480 others is waiting")


def test_a_dag_without_a_schedule_is_never_due(host: time_machine.Traveller) -> None:
    found = look(DagSnapshot("d", None, MIDNIGHT), at_most=32, bound=10)
    assert (found.runs, kinds(found)) == ((), [HoldKind.SCHEDULE])


class Stubborn(ContinuousTimetable):
    """Asks for one run again and again, even if it exists."""

    active_runs_limit = None

    def next_dagrun_info(self, **_: Any) -> DagRunInfo | None:
        return DagRunInfo.exact(MIDNIGHT)


def test_a_timetable_that_asks_for_the_same_run_for_ever_gets_it_once(
    host: time_machine.Traveller,
) -> None:
    dag = Dag(host, OnTime(Stubborn()))
    assert len(dag.run(MIDNIGHT)) == 1
    assert dag.run(MIDNIGHT) == []


def test_a_dag_that_catches_up_without_a_start_shows_that_it_is_missing(
    host: time_machine.Traveller,
) -> None:
    def told(**columns: Any) -> str:
        (hold,) = Dag(host, OnTime(HOURLY), **columns).at(MIDNIGHT).holds
        return hold.reason

    assert "catchup=True needs a start_date to begin at" in told(catchup=True)
    over = told(catchup=True, start=MIDNIGHT - DAY, end=MIDNIGHT - DAY - HOUR)
    assert over == "its timetable asks for no further run"


def test_each_run_that_a_timetable_with_partition_keys_asks_for_has_its_key(
    host: time_machine.Traveller,
) -> None:
    daily = CronPartitionTimetable("@daily", timezone="UTC", run_offset=-1, key_format="%Y-%m-%d")
    dag = Dag(host, OnTime(daily), start=MIDNIGHT, catchup=True)
    found = dag.at(MIDNIGHT + 2 * DAY)
    assert [run.partition_key for run in found.runs] == ["2026-01-09", "2026-01-10", "2026-01-11"]
    dag = Dag(host, OnBoth(daily, A), start=MIDNIGHT)
    dag.event(A)
    (run,) = dag.at(MIDNIGHT + 2 * DAY).runs
    assert (run.run_type, run.partition_key) == (RunType.ASSET_TRIGGERED, "2026-01-11")


def test_a_run_that_was_named_before_and_is_made_late_has_its_key(
    host: time_machine.Traveller,
) -> None:
    """The next run is stored before the run is due, but without its key."""
    daily = CronPartitionTimetable("@daily", timezone="UTC", key_format="%Y-%m-%d")
    dag = Dag(host, OnTime(daily))
    assert dag.run(MIDNIGHT - HOUR) == []
    (run,) = dag.at(MIDNIGHT + 5 * HOUR).runs
    assert (run.run_after, run.partition_key) == (MIDNIGHT, "2026-01-10")


def test_a_timetable_with_an_invalid_key_gets_no_run(
    host: time_machine.Traveller,
) -> None:
    class Nameless(CronTriggerTimetable):
        def partition_key(self, interval: DataInterval) -> str:
            return ""

    dag = Dag(host, OnTime(Nameless("@daily", timezone="UTC")), start=MIDNIGHT)
    with pytest.raises(RowRefused, match="partition key"):
        dag.at(MIDNIGHT)
