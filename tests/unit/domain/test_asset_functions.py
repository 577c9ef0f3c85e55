"""`@asset`: a function, its asset, and its DAG."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from triggerer.domain.assets import Asset, AssetAlias, AssetRef
from triggerer.domain.authoring.asset_functions import asset
from triggerer.domain.conditions import AssetAll, assets_of
from triggerer.domain.dags import DAG, collect_dags
from triggerer.domain.schedules import OnAssets, condition_of
from triggerer.errors import DagError


def test_a_function_becomes_an_asset_and_a_dag_of_one_task() -> None:
    source = Asset("x-source")
    with collect_dags() as collected:

        @asset(schedule=source, uri="x-made://it", group="g", extra={"a": 1}, tags=["t"])
        def made() -> None: ...

    assert made == Asset("made", uri="x-made://it")
    assert hash(made) == hash(Asset("made", uri="x-made://it"))
    assert Asset("made", uri="x-made://it") == made
    assert (made.group, made.extra) == ("g", {"a": 1})
    assert collected == [made.dag]
    assert (made.dag.dag_id, made.dag.schedule, made.dag.tags) == ("made", OnAssets(source), ("t",))
    (one,) = made.dag.tasks.values()
    assert (one.task_id, one.outlets, one.inlets) == ("made", (made,), ())


def test_an_asset_function_can_be_what_another_dag_waits_for() -> None:
    @asset(schedule=None)
    def first() -> None: ...

    @asset(schedule=first, dag_id="another", name="second name")
    def second() -> None: ...

    assert second.dag.dag_id == "another"
    assert second.dag.schedule_to_json() == {"asset": {"name": "first", "uri": "first"}}
    assert second.name == "second name"


def test_its_parameters_are_the_asset_the_context_what_a_run_offers_and_other_assets() -> None:
    @asset(schedule=None)
    def made(self: Any, context: Any, params: Any, upstream: Any, limit: int = 3) -> Any:
        return self, context, params, upstream, limit

    (one,) = made.dag.tasks.values()
    assert one.inlets == (AssetRef("upstream"),)
    assert "spark" not in one.context_names
    context: dict[str, Any] = {name: name for name in one.context_names}
    given = Asset("x-up", name="upstream")
    own, whole, params, upstream, limit = one.call(
        context=context | {"upstream": given}, results={}
    )
    assert own is made
    assert whole == context
    assert (params, upstream, limit) == ("params", given, 3)


def test_an_asset_function_that_names_spark_gets_it() -> None:
    @asset(schedule=None)
    def made(spark: Any, context: Any) -> Any:
        return spark, context

    (one,) = made.dag.tasks.values()
    assert one.needs_spark
    context = {name: name for name in one.context_names}
    spark, whole = one.call(context=context, results={})
    assert (spark, whole["spark"]) == ("spark", "spark")


def test_a_function_can_make_several_assets() -> None:
    a, b, alias = Asset("x-a"), Asset("x-b"), AssetAlias("alias")

    @asset.multi(schedule=None, outlets=[a, b, alias], default_args={"retries": 2})
    def both(self: Any) -> Any:
        return self

    (one,) = both.dag.tasks.values()
    assert both.dag.dag_id == "both"
    assert (one.outlets, one.retries) == ((a, b, alias), 2)
    assert one.call(context={}, results={}) is both
    assert isinstance(both, AssetAll)
    with DAG("after", schedule=both) as after:
        pass
    assert assets_of(condition_of(after.schedule)) == (a, b)
    assert (a | both).objects == (a, both)


def test_a_function_of_several_assets_runs_by_hand_without_a_schedule() -> None:
    @asset.multi(outlets=[Asset("x-a")])
    def by_hand() -> None: ...

    assert by_hand.dag.schedule is None


async def _async() -> None: ...


def _varying(*args: Any) -> None: ...


def _keywords(**kwargs: Any) -> None: ...


def _positional(given: Any, /) -> None: ...


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (_async, "is async"),
        (_varying, r"'\*args' is not supported"),
        (_keywords, r"'\*kwargs' is not supported"),
        (_positional, "positional-only argument 'given'"),
        (lambda: None, "a function with a name"),
        (7, "a function with a name"),
    ],
)
def test_an_unsuitable_asset_function_is_refused(function: Callable[..., Any], reason: str) -> None:
    with pytest.raises(DagError, match=reason):
        asset(schedule=None)(function)


def test_an_option_of_neither_the_asset_nor_the_dag_is_refused() -> None:
    with pytest.raises(DagError, match="does not know the option 'owner_links'"):
        asset(schedule=None, owner_links={})
    with pytest.raises(DagError, match="at least one outlet"):
        asset.multi(schedule=None, outlets=[])
    with pytest.raises(DagError, match="outlets must be assets or aliases"):
        asset.multi(schedule=None, outlets=["x"])  # type: ignore[list-item]
