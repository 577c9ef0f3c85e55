from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from triggerer.domain.assets import Asset
from triggerer.domain.authoring.arguments import CONTEXT_ARGUMENTS
from triggerer.domain.dags import DAG
from triggerer.domain.tasks import Task, task
from triggerer.errors import DagError


class Pair(NamedTuple):
    left: Any
    right: Any


def add(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Task:
    with DAG("d"):
        return task(function)(*args, **kwargs)


def run(one: Task, results: dict[str, Any] | None = None, **context: Any) -> Any:
    return one.call(context=context, results=results or {})


@task
def extract() -> dict[str, Any]:
    return {"rows": [1, 2]}


def test_a_decorated_function_keeps_its_name_and_can_be_called_as_it_was() -> None:
    assert extract.__name__ == "extract"
    assert extract.function() == {"rows": [1, 2]}


def test_a_call_outside_a_dag_says_what_to_do() -> None:
    with pytest.raises(DagError, match=r"outside a DAG .*extract\.function"):
        extract()


@pytest.mark.parametrize("name", CONTEXT_ARGUMENTS)
def test_context_arguments_are_filled_in_by_name(name: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def function({name}): return {name}", namespace)
    one = add(namespace["function"])
    assert one.context_names == {name}
    assert run(one, **{name: 7}) == 7


def test_any_other_argument_must_be_given_or_have_a_default() -> None:
    def function(first: int, spark: Any, second: int = 2) -> Any: ...

    with pytest.raises(DagError, match="argument 'first' is not given"):
        add(function)
    with pytest.raises(DagError, match="task 'function' of DAG 'd': too many positional"):
        add(function, 1, 2, 3, 4)
    with pytest.raises(DagError, match="unexpected keyword argument 'third'"):
        add(function, 1, third=3)


def test_a_call_may_give_what_the_run_would_have() -> None:
    one = add(lambda spark, params: (spark, params), "mine")
    assert not one.needs_spark
    assert run(one, params={"a": 1}) == ("mine", {"a": 1})


def test_only_a_task_that_names_spark_needs_it() -> None:
    assert add(lambda spark: spark).needs_spark
    assert not add(lambda log: log).needs_spark
    assert not add(lambda **everything: everything).needs_spark


def test_keywords_get_the_context_but_no_spark() -> None:
    one = add(lambda log, **rest: (log, rest), params="mine", other=1)
    assert one.context_names == set(CONTEXT_ARGUMENTS) - {"spark", "params"}
    context = dict.fromkeys(one.context_names, 0)
    log, rest = run(one, **context)
    assert log == 0
    assert set(rest) == (set(context) - {"log"}) | {"params", "other"}
    assert rest["params"] == "mine"


def test_context_fits_positional_only_and_keyword_only_arguments() -> None:
    def function(log: Any, /, given: Any, *, run_id: Any, other: Any = 4) -> Any:
        return log, given, run_id, other

    assert run(add(function, given=2), log=1, run_id=3) == (1, 2, 3, 4)


def test_a_result_that_is_passed_makes_an_edge_and_arrives() -> None:
    with DAG("d") as dag:
        extracted = extract()
        one = task(lambda value: value)(extracted)
    assert one.upstream == (extracted,)
    assert run(one, {"extract": 5}) == 5
    assert dag.tasks_in_order() == (extracted, one)


def test_results_arrive_from_inside_containers_and_as_items() -> None:
    with DAG("d"):
        extracted = extract()
        other = extract()
        one = task(lambda *args, **kwargs: (args, kwargs))(
            [extracted["rows"][0], 9],
            (other, {"deep": [extracted]}),
            pair=Pair(other, 1),
            plain={"x": (1, 2)},
        )
    assert one.upstream == (extracted, other)
    results = {"extract": {"rows": ["r"]}, "extract__1": "o"}
    context = dict.fromkeys(one.context_names)
    args, kwargs = one.call(context=context, results=results)
    assert args == (["r", 9], ("o", {"deep": [{"rows": ["r"]}]}))
    assert kwargs["pair"] == Pair("o", 1)
    assert isinstance(kwargs["pair"], Pair)
    assert kwargs["plain"] == {"x": (1, 2)}


def test_an_argument_without_results_arrives_as_the_very_object() -> None:
    class Rows(list[int]): ...

    rows = Rows([1])
    assert run(add(lambda given: given, rows)) is rows


def test_results_cannot_be_iterated_while_the_file_is_parsed() -> None:
    with DAG("d"):
        extracted = extract()
    with pytest.raises(TypeError, match="not iterable"):
        list(extracted)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="not iterable"):
        list(extracted["rows"])


def test_a_generator_is_handed_to_the_run() -> None:
    def function() -> Any:
        yield 1
        yield 2

    assert list(run(add(function))) == [1, 2]


def test_outlets_and_inlets_may_be_one_asset_or_many() -> None:
    a, b = Asset("a"), Asset("b")
    with DAG("d"):
        one = task(outlets=a, inlets=[a, b, a])(lambda: None)()
    assert one.outlets == (a,)
    assert one.inlets == (a, b)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"retries": -1}, "retries"),
        ({"retries": 1.5}, "retries"),
        ({"retry_delay": "5m"}, "retry_delay"),
        ({"timeout": timedelta(seconds=-1)}, "timeout"),
        ({"timeout": 0}, "timeout of 0"),
        ({"outlets": "a"}, "outlets must be assets"),
        ({"inlets": [1]}, "inlets must be assets"),
        ({"pool": ""}, "a pool's name"),
        ({"pool": 3}, "a pool's name"),
        ({"retrys": 1}, "does not know the option 'retrys'"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_by_name(
    options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(DagError, match=reason):
        task(**options)


def test_an_async_function_is_refused() -> None:
    async def function() -> None: ...

    with pytest.raises(DagError, match="is async"):
        task(function)
