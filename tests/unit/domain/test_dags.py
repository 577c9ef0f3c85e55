from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from triggerer.domain.assets import Asset, AssetAlias
from triggerer.domain.conditions import AssetAll
from triggerer.domain.dags import DAG, collect_dags, current_dag
from triggerer.domain.schedules import OnBoth, OnEither, OnTime
from triggerer.domain.tasks import Task, task
from triggerer.domain.timetables import (
    AssetAndTimeSchedule,
    AssetOrTimeSchedule,
    CronTriggerTimetable,
    DeltaTriggerTimetable,
    NullTimetable,
)
from triggerer.errors import DagError

A, B = Asset("a"), Asset("b")


@task
def nothing() -> None: ...


@pytest.mark.parametrize(
    ("schedule", "stored"),
    [
        (None, None),
        (A, {"asset": {"name": "a", "uri": "a"}}),
        ([A], {"all": [{"asset": {"name": "a", "uri": "a"}}]}),
        (
            (A | B),
            {"any": [{"asset": {"name": "a", "uri": "a"}}, {"asset": {"name": "b", "uri": "b"}}]},
        ),
        (AssetAlias("x"), {"alias": "x"}),
        (
            [A, A | B, AssetAlias("x")],
            {
                "all": [
                    {"asset": {"name": "a", "uri": "a"}},
                    {
                        "any": [
                            {"asset": {"name": "a", "uri": "a"}},
                            {"asset": {"name": "b", "uri": "b"}},
                        ]
                    },
                    {"alias": "x"},
                ]
            },
        ),
    ],
)
def test_a_schedule_is_nothing_assets_or_an_expression(schedule: Any, stored: Any) -> None:
    assert DAG("d", schedule=schedule).schedule_to_json() == stored


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        ("@dayly", "@dayly"),
        ("0 4 * *", "0 4"),
        (object(), "is no schedule"),
        (3, "is no schedule"),
        ([], "an empty list is no schedule"),
        ([A, "b"], "not 'b'"),
    ],
)
def test_a_value_that_is_no_schedule_is_refused(schedule: Any, reason: str) -> None:
    with pytest.raises(DagError, match=reason):
        DAG("d", schedule=schedule)


def test_time_assets_and_both_are_schedules() -> None:
    cron = CronTriggerTimetable("0 4 * * *", timezone="UTC")
    assert DAG("d", schedule="0 4 * * *").schedule == OnTime(cron)
    assert DAG("d", schedule=timedelta(hours=1)).schedule == OnTime(
        DeltaTriggerTimetable(timedelta(hours=1))
    )
    either = AssetOrTimeSchedule(timetable=cron, assets=[A])
    assert DAG("d", schedule=either).schedule == OnEither(cron, AssetAll(A))
    both = AssetAndTimeSchedule(timetable=cron, assets=A)
    assert DAG("d", schedule=both).schedule == OnBoth(cron, A)
    assert DAG("d", schedule=NullTimetable()).schedule is None


def test_the_zone_of_the_start_is_that_of_a_cron_expression() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    dag = DAG("d", schedule="0 4 * * *", start_date=datetime(2026, 1, 1, tzinfo=berlin))
    assert dag.schedule == OnTime(CronTriggerTimetable("0 4 * * *", timezone=berlin))


def test_a_date_without_a_zone_is_utc_and_a_bare_number_seconds() -> None:
    dag = DAG("d", end_date=datetime(2026, 1, 1), min_run_gap=90, quiet_period=0.5)  # noqa: DTZ001
    assert dag.end_date == datetime(2026, 1, 1, tzinfo=UTC)
    assert (dag.min_run_gap, dag.quiet_period) == (
        timedelta(seconds=90),
        timedelta(milliseconds=500),
    )


def test_a_dag_may_end_at_the_moment_at_which_it_starts() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    dag = DAG("d", start_date=moment.astimezone(ZoneInfo("Europe/Berlin")), end_date=moment)
    assert dag.start_date == dag.end_date


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"max_active_runs": 0}, "max_active_runs"),
        ({"max_active_runs": True}, "max_active_runs"),
        ({"events_per_run": 0}, "events_per_run"),
        ({"events_per_run": 1.5}, "events_per_run"),
        ({"tags": [1]}, "tag"),
        ({"tags": 1}, "tags are strings"),
        ({"default_args": [1]}, "options of its tasks by name"),
        ({"quiet_period": float("nan")}, "more than 0, not nan"),
        ({"quiet_period": 1e300}, "quiet_period"),
        ({"params": {"x": object()}}, "params"),
        ({"description": 3}, "description"),
        ({"default_args": {"owner": "me"}}, "'owner', which is no option of a task"),
        ({"default_args": {"retries": -1}}, "retries"),
        ({"default_args": {"pool": "a,b"}}, "a pool's name"),
        ({"start_date": "2026-01-01"}, "start_date must be a datetime"),
        ({"end_date": 3}, "end_date must be a datetime"),
        (
            {"start_date": datetime(2026, 1, 2, tzinfo=UTC), "end_date": datetime(2026, 1, 1)},  # noqa: DTZ001
            "end_date 2026-01-01 00:00:00Z lies before start_date 2026-01-02",
        ),
        ({"min_run_gap": timedelta(0)}, "min_run_gap"),
        ({"quiet_period": -1}, "quiet_period"),
        ({"quiet_period": True}, "quiet_period"),
        ({"priority": 1.5}, "priority"),
        # If a value did not fit its PostgreSQL column, the definitions of no file could be stored.
        ({"max_active_runs": 2**31}, "from 1 to 2147483647"),
        ({"events_per_run": 2**31}, "from 1 to 2147483647"),
        ({"min_run_gap": timedelta.max}, "min_run_gap must be at most 36,500 days"),
        ({"schedule": timedelta.max}, "must be at most 36,500 days"),
        ({"default_args": {"timeout": timedelta.max}}, "timeout must be at most 36,500 days"),
        ({"default_args": {"retry_delay": float("inf")}}, "a timedelta from 0, not inf"),
        ({"catchup": "False"}, "catchup must be True or False, not 'False'"),
        ({"depends_on_past": 1}, "depends_on_past must be True or False"),
        ({"is_paused_upon_creation": "no"}, "is_paused_upon_creation must be True or False"),
        (
            {"start_date": datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))},
            "start_date lies outside the years 1 to 9999",
        ),
        ({"priority": 2**31}, "from -2147483647 to 2147483647"),
    ],
)
def test_an_argument_that_makes_no_sense_is_refused_by_name(
    wrong: dict[str, Any], reason: str
) -> None:
    with pytest.raises(DagError, match=reason):
        DAG("d", **wrong)


@pytest.mark.parametrize("dag_id", [".", ".."])
def test_no_dag_has_an_id_that_a_url_resolves(dag_id: str) -> None:
    with pytest.raises(DagError, match="a DAG's id cannot be"):
        DAG(dag_id)


@pytest.mark.parametrize("dag_id", ["", "a b", "a/b", "x" * 251, None])
def test_an_id_that_no_url_could_hold_is_refused(dag_id: Any) -> None:
    with pytest.raises(DagError, match="a DAG's id must be"):
        DAG(dag_id)


def test_a_task_called_inside_belongs_to_the_innermost_dag() -> None:
    with DAG("outer") as outer:
        nothing()
        with DAG("inner") as inner:
            nothing()
        nothing()
    assert list(outer.tasks) == ["nothing", "nothing__1"]
    assert list(inner.tasks) == ["nothing"]
    assert current_dag() is None


def test_a_name_that_is_taken_gets_a_number() -> None:
    with DAG("d") as dag:
        for _ in range(3):
            nothing()
        nothing.override(task_id="other")()
    assert list(dag.tasks) == ["nothing", "nothing__1", "nothing__2", "other"]


def test_dags_are_noted_when_their_block_ends_without_an_error() -> None:
    with collect_dags() as collected:
        with DAG("kept"):
            pass
        with pytest.raises(ZeroDivisionError), DAG("broken"):
            _ = 1 / 0
    assert [dag.dag_id for dag in collected] == ["kept"]


def test_default_arguments_hold_for_tasks_that_say_nothing_else() -> None:
    with DAG("d", default_args={"retries": 2, "retry_delay": 5, "timeout": timedelta(minutes=1)}):
        default = nothing()
        own = nothing.override(retries=0, timeout=3)()
    assert (default.retries, default.retry_delay) == (2, timedelta(seconds=5))
    assert default.timeout == timedelta(minutes=1)
    assert (own.retries, own.timeout) == (0, timedelta(seconds=3))


def _names(tasks: tuple[Task, ...]) -> list[str]:
    return [one.task_id for one in tasks]


def test_tasks_come_after_those_that_they_wait_for_and_otherwise_as_made() -> None:
    with DAG("d") as dag:
        a, b, c, d = (nothing.override(task_id=name)() for name in "abcd")
        d >> b
        [c, d] >> a
    assert _names(dag.tasks_in_order()) == ["c", "d", "a", "b"]
    assert _names(a.upstream) == ["c", "d"]


def test_arrows_chain_and_take_lists_on_either_side() -> None:
    with DAG("d") as dag:
        a, b, c, d, e = (nothing.override(task_id=name)() for name in "abcde")
        a >> [b, c] >> d
        d << [e]
        [a, b] << e
    assert {one.task_id: sorted(_names(one.upstream)) for one in dag.tasks.values()} == {
        "a": ["e"],
        "b": ["a", "e"],
        "c": ["a"],
        "d": ["b", "c", "e"],
        "e": [],
    }


def test_a_chain_longer_than_the_stack_is_put_in_order() -> None:
    with DAG("d") as dag:
        tasks = [nothing.override(task_id=f"t{i}")() for i in range(1500)]
        for later, earlier in itertools.pairwise(tasks):
            earlier >> later
    assert dag.tasks_in_order() == tuple(reversed(tasks))


def test_there_may_be_no_tags_in_each_way_of_saying_so() -> None:
    assert [DAG("d", tags=none).tags for none in (None, (), [])] == [(), (), ()]


def test_a_cycle_is_refused_and_shown() -> None:
    with DAG("d"):
        a, b, c = (nothing.override(task_id=name)() for name in "abc")
        a >> b >> c
        with pytest.raises(DagError, match="a >> b >> c >> a"):
            c >> a
        with pytest.raises(DagError, match="b >> b"):
            b >> b


def test_tasks_of_two_dags_cannot_be_ordered() -> None:
    with DAG("one"):
        a = nothing()
    with DAG("two"):
        b = nothing()
    with pytest.raises(DagError, match="of DAG 'two' cannot wait for task"):
        a >> b


def test_only_tasks_can_be_ordered() -> None:
    with DAG("d"), pytest.raises(DagError, match="order tasks, not 3"):
        nothing() >> 3  # type: ignore[operator]
