"""SparkSql and SparkApplication inside a DAG."""

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from triggerer import DAG, Asset, SparkApplication, SparkSql, task
from triggerer.domain.authoring.spark_values import is_static
from triggerer.errors import DagError

AVRO = "org.apache.spark:spark-avro_2.13:4.1.1"


class FakeFrame:
    """Stands for a DataFrame. The result of a query has two columns, and the result of a `create` has none."""

    def __init__(self, statement: str, done: list[str]) -> None:
        self.columns = [] if statement.startswith("create") else ["n", "text"]
        self.write = self
        self._done = done

    def format(self, name: str) -> "FakeFrame":
        self._done.append(name)
        return self

    def mode(self, name: str) -> "FakeFrame":
        return self

    def save(self) -> None:
        self._done.append("save")

    def take(self, count: int) -> list[tuple[int, str | None]]:
        return [(number, None if number else "x" * 100) for number in range(count)]


class FakeSpark:
    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.done: list[str] = []

    def sql(self, *arguments: Any) -> FakeFrame:
        self.asked.append(arguments)
        return FakeFrame(arguments[0], self.done)


def test_sql_is_a_task_that_takes_results_and_has_an_order() -> None:
    with DAG("d") as dag:

        @task
        def day() -> str:
            return "2026-01-01"

        first = SparkSql("load", "select :day", arguments={"day": day()}, outlets=Asset("a"))
        first >> SparkSql("after", "select 1", retries=2)
    load, after = dag.tasks["load"], dag.tasks["after"]
    assert [one.task_id for one in load.upstream] == ["day"]
    assert load.needs_spark
    assert load.outlets == (Asset("a"),)
    assert after.upstream == (load,)
    assert after.retries == 2


def test_the_statements_are_executed_in_order_and_the_last_result_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with DAG("d"):
        made = SparkSql("s", "create table t; select 1; select :x", arguments={"x": 3})
    spark = FakeSpark()
    with caplog.at_level(logging.INFO):
        made.call(context={"spark": spark, "log": logging.getLogger("task.s")}, results={})
    assert [asked[0] for asked in spark.asked] == ["create table t", "select 1", "select :x"]
    assert spark.asked[-1][1] == {"x": 3}
    assert spark.done == ["noop", "save"]
    shown = caplog.messages[-1].splitlines()
    assert shown[1].split() == ["n", "text"]
    assert shown[3].split() == ["1", "NULL"]
    assert shown[2].endswith("…")
    assert shown[-1] == "… only the first 20 rows are shown"


def test_an_error_tells_in_which_statement_it_was() -> None:
    with DAG("d"):
        made = SparkSql("s", "create table t; selec 1; select 2")

    def refuse(statement: str) -> SimpleNamespace:
        if statement.startswith("selec "):
            raise ValueError("a syntax error")
        return SimpleNamespace(columns=[])

    values = {"spark": SimpleNamespace(sql=refuse), "log": logging.getLogger("task.s")}
    with pytest.raises(ValueError, match="a syntax error") as caught:
        made.call(context=values, results={})
    assert caught.value.__notes__ == ["It was statement 2 of 3: selec 1"]


def test_an_application_calls_what_the_run_fills_in_and_starts_no_session() -> None:
    with DAG("d"):
        made = SparkApplication(
            "a", "jobs/a.py", arguments=["--day", 3], conf={"spark.cores.max": 2}, packages=[AVRO]
        )
    assert not made.needs_spark
    called: list[Any] = []
    made.call(context={"submit": lambda *args, **kwargs: called.append((args, kwargs))}, results={})
    assert called == [
        (
            ("jobs/a.py",),
            {
                "arguments": ["--day", 3],
                "conf": {"spark.cores.max": "2"},
                "packages": (AVRO,),
                "main_class": None,
            },
        )
    ]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: SparkSql("s", " "), "at least one statement"),
        (lambda: SparkSql("s", "-- no"), "no statement"),
        (lambda: SparkSql("s", "select 'a"), "the quote '"),
        (lambda: SparkSql("s", "select 1", argument=3), "option 'argument'"),
        (lambda: SparkSql("s", "select 1", arguments=3), "a mapping (:name) or a list"),
        (lambda: SparkSql("s p", "select 1"), "a task's id"),
        (lambda: SparkApplication("a", "job.scala"), "neither a Python file (.py) nor a jar"),
        (lambda: SparkApplication("a", ""), "a path or a URL"),
        (lambda: SparkApplication("a", "a.py", arguments="-x"), "arguments must be a list"),
        (lambda: SparkApplication("a", "a.py", arguments=[None]), "text, a number or another"),
        (lambda: SparkApplication("a", "a.py", main_class="A"), "main_class is for a jar"),
        (lambda: SparkApplication("a", "a.py", conf={"cores": 1}), "begins with spark."),
        (lambda: SparkApplication("a", "a.py", conf={"spark.master": "x"}), "cannot set"),
        (lambda: SparkApplication("a", "a.py", conf={"spark.x": None}), "must be text"),
        (lambda: SparkApplication("a", "a.py", packages=["delta"]), "no Maven coordinate"),
    ],
)
def test_wrong_arguments_are_refused_when_the_file_is_read(
    make: Callable[[], Any], said: str
) -> None:
    with DAG("d"), pytest.raises(DagError) as caught:
        make()
    assert said in caught.value.message


def test_both_belong_into_a_dag() -> None:
    for make in (lambda: SparkSql("s", "select 1"), lambda: SparkApplication("a", "a.py")):
        with pytest.raises(DagError, match="outside a DAG"):
            make()


@pytest.mark.parametrize(
    ("key", "static"),
    [
        ("spark.sql.shuffle.partitions", False),
        ("spark.sql.session.timeZone", False),
        ("spark.sql.ansi.enabled", False),
        ("spark.sql.extensions", True),
        ("spark.sql.catalog.ice", True),
        ("spark.sql.warehouse.dir", True),
        ("spark.executor.memory", True),
        ("spark.hadoop.fs.s3a.endpoint", True),
    ],
)
def test_settings_of_a_session_are_told_from_settings_of_a_jvm(key: str, *, static: bool) -> None:
    assert is_static(key) is static


def test_a_dag_has_its_own_settings_and_packages() -> None:
    dag = DAG("d", spark_conf={"spark.sql.ansi.enabled": False}, spark_packages=AVRO)
    assert dag.spark_conf == {"spark.sql.ansi.enabled": "false"}
    assert dag.spark_packages == (AVRO,)
    with pytest.raises(DagError, match="max_parallel_tasks"):
        DAG("d", max_parallel_tasks=0)
