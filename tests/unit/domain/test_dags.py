from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from triggerer.domain.assets import Asset, AssetAlias
from triggerer.domain.dags import DAG, current_dag, note_dags
from triggerer.domain.tasks import Task, task
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
        ("@daily", "does not have cron strings and presets yet"),
        ("0 4 * * *", "does not have cron strings and presets yet"),
        (timedelta(hours=1), "does not have timedelta schedules yet"),
        (object(), "does not have timetables yet"),
        ([], "an empty list is no schedule"),
        ([A, "b"], "not 'b'"),
    ],
)
def test_a_schedule_that_this_release_does_not_have_is_refused(schedule: Any, reason: str) -> None:
    with pytest.raises(DagError, match=reason):
        DAG("d", schedule=schedule)


@pytest.mark.parametrize(
    "later",
    [
        {"start_date": datetime(2026, 1, 1, tzinfo=UTC)},
        {"end_date": datetime(2026, 1, 1, tzinfo=UTC)},
        {"catchup": True},
        {"min_run_gap": timedelta(minutes=1)},
        {"quiet_period": timedelta(minutes=1)},
    ],
)
def test_what_a_later_release_brings_is_refused_by_name(later: dict[str, Any]) -> None:
    with pytest.raises(DagError, match=f"does not have {next(iter(later))} yet"):
        DAG("d", **later)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"max_active_runs": 0}, "max_active_runs"),
        ({"max_active_runs": True}, "max_active_runs"),
        ({"events_per_run": 0}, "events_per_run"),
        ({"events_per_run": 1.5}, "events_per_run"),
        ({"tags": [1]}, "tag"),
        ({"params": {"x": object()}}, "params"),
        ({"description": 3}, "description"),
        ({"default_args": {"owner": "me"}}, "'owner', which is no option of a task"),
        ({"default_args": {"retries": -1}}, "retries"),
        ({"default_args": {"pool": "p"}}, "does not have pools yet"),
    ],
)
def test_an_argument_that_makes_no_sense_is_refused_by_name(
    wrong: dict[str, Any], reason: str
) -> None:
    with pytest.raises(DagError, match=reason):
        DAG("d", **wrong)


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
    with note_dags() as noted:
        with DAG("kept"):
            pass
        with pytest.raises(ZeroDivisionError), DAG("broken"):
            _ = 1 / 0
    assert [dag.dag_id for dag in noted] == ["kept"]


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
