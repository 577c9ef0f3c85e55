"""Arguments and imports that a DAG file gets wrong: the error says which ones are meant."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import triggerer
from triggerer.dag_processing.describing import parse_file
from triggerer.domain.authoring.airflow_names import ADVICE, ARGUMENTS
from triggerer.domain.authoring.asset_functions import asset
from triggerer.domain.dags import DAG
from triggerer.domain.tasks import OPTION_NAMES
from triggerer.errors import TriggererError
from triggerer.plugins.dag_file import file_error

MODULES = (
    "triggerer",
    "triggerer.timetables",
    "triggerer.partitions",
    "watchers.directory",
    "watchers.http",
    "watchers.kafka",
    "watchers.messaging",
    "watchers.pubsub",
    "watchers.servicebus",
    "watchers.sqs",
)


def public_calls() -> Iterator[tuple[str, Any, str]]:
    """Yield each public class and function with the name of each of its keyword arguments."""
    for name in MODULES:
        module = importlib.import_module(name)
        mine = [key for key, value in vars(module).items() if _is_public_in(module, key, value)]
        for key in sorted(getattr(module, "__all__", mine)):
            called = getattr(module, key)
            if not callable(called) or inspect.isabstract(called):
                continue
            if isinstance(called, type) and issubclass(called, BaseException):
                continue
            parameters = inspect.signature(called).parameters.values()
            if any(one.kind is one.VAR_KEYWORD for one in parameters):
                # Such a function refuses unknown names itself. The tests below cover each of these functions.
                continue
            for one in parameters:
                if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD):
                    yield f"{name}.{key}", called, one.name


def _is_public_in(module: Any, key: str, value: Any) -> bool:
    return key[0] != "_" and isinstance(value, type) and value.__module__ == module.__name__


CALLS = list(public_calls())


def error_in(tmp_path: Path, source: str) -> str:
    (tmp_path / "a.py").write_text(source)
    modules, path = dict(sys.modules), list(sys.path)
    try:
        parsed = parse_file("a.py", tmp_path, ())
    finally:
        for name in set(sys.modules) - set(modules):
            if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]
        sys.path[:] = path
    (error,) = parsed.errors
    return str(error)


@pytest.mark.parametrize(
    ("path", "called", "argument"), CALLS, ids=[f"{path}({name})" for path, _, name in CALLS]
)
def test_a_misspelt_argument_of_a_public_name_is_named_with_the_right_one(
    path: str, called: Any, argument: str
) -> None:
    typed = f"{argument}{argument[-1]}"
    try:
        called(**{typed: None})
    except Exception as raised:  # noqa: BLE001  (of several kinds: all of them pass this way)
        error = file_error(raised, __file__, "a.py")
    else:
        pytest.fail(f"{path} takes an argument that it does not have")
    assert repr(typed) in error.reason
    assert error.hint == f"did you mean {argument!r}?"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "import triggerer\ntriggerer.DAG('d', schedule_interval='@daily')\n",
            (
                "a.py:2: DAG has no argument 'schedule_interval'"
                " (Airflow's 'schedule_interval' is 'schedule' here)"
            ),
        ),
        (
            "from triggerer import DAG\nDAG('d', max_active_tasks=3)\n",
            (
                "a.py:2: DAG has no argument 'max_active_tasks'"
                " (Airflow's 'max_active_tasks' is 'max_parallel_tasks' here)"
            ),
        ),
        (
            "from triggerer import DAG\nDAG('d', dagrun_timeout=3)\n",
            (
                "a.py:2: DAG has no argument 'dagrun_timeout'"
                " (give each task a timeout: @task(timeout=...))"
            ),
        ),
        (
            "from triggerer import DAG\nDAG('d', default_args={'owner': 'me'})\n",
            (
                "a.py:2: <DAG d>: default_args has 'owner', which is no option of a task"
                " (leave it out, or write it into DAG(tags=[...]))"
            ),
        ),
        (
            "from triggerer import task\n@task(execution_timeout=3)\ndef f(): ...\n",
            (
                "a.py:2: @task does not know the option 'execution_timeout'"
                " (Airflow's 'execution_timeout' is 'timeout' here)"
            ),
        ),
        (
            "from triggerer import DAG, task\nwith DAG('d'):\n  @task\n  def f(path): ...\n  f(pth=1)\n",
            (
                "a.py:5: task 'f' of DAG 'd': got an unexpected keyword argument 'pth'"
                " (did you mean 'path'?)"
            ),
        ),
        (
            "class Mine:\n  def __init__(self, folder): ...\nMine(foldr=1)\n",
            "a.py:3: Mine has no argument 'foldr' (did you mean 'folder'?)",
        ),
        (
            (
                "from watchers.messaging import MessageQueueTrigger\n"
                "MessageQueueTrigger('kafka:///a', grup_id='x')\n"
            ),
            (
                "a.py:2: 'kafka:///a': KafkaEventTrigger has no argument 'grup_id'"
                " (did you mean 'group_id'?)"
            ),
        ),
    ],
)
def test_an_unknown_argument_in_a_file_is_explained(tmp_path: Path, source: str, said: str) -> None:
    assert error_in(tmp_path, source) == said


def test_a_call_that_nobody_can_explain_keeps_pythons_words(tmp_path: Path) -> None:
    said = error_in(tmp_path, "(lambda: 0)(y=1)\n")
    assert said == "a.py:1: TypeError: <lambda>() got an unexpected keyword argument 'y'"


@pytest.mark.skipif(find_spec("airflow") is not None, reason="airflow is installed")
@pytest.mark.parametrize(
    ("statement", "meant"),
    [
        ("from airflow.sdk import DAG, task", "write `from triggerer import DAG, task`;"),
        ("from airflow import DAG", "write `from triggerer import DAG`;"),
        ("from airflow.models import DAG", "write `from triggerer import DAG`;"),
        ("from airflow.decorators import task", "write `from triggerer import task`;"),
        ("from airflow.datasets import Dataset", "write `from triggerer import Asset`;"),
        ("import airflow", "write `from triggerer import DAG, Asset, task`;"),
        (
            "from airflow.timetables.trigger import CronTriggerTimetable",
            "write `from triggerer.timetables import CronTriggerTimetable`;",
        ),
        (
            "from airflow.operators.python import PythonOperator",
            "in place of PythonOperator, make the function a task with @task;",
        ),
        (
            "from airflow.providers.apache.kafka.triggers.await_message import AwaitMessageTrigger",
            "install Airflow next to triggerer, see docs/howto/moving-from-airflow.md)",
        ),
    ],
)
def test_an_import_of_airflow_names_the_one_that_is_meant(
    tmp_path: Path, statement: str, meant: str
) -> None:
    said = error_in(tmp_path, f"import os\n{statement}\n")
    assert said.startswith("a.py:2: ModuleNotFoundError: No module named 'airflow'")
    assert meant in said


@pytest.mark.parametrize(
    ("statement", "meant"),
    [
        ("from triggerer import Dag", "(did you mean 'DAG'?)"),
        ("from triggerer import Dataset", "(write `from triggerer import Asset`)"),
        (
            "from triggerer import CronTriggerTimetable",
            "(write `from triggerer.timetables import CronTriggerTimetable`)",
        ),
        ("from watchers.kafka import KafkaEventsTrigger", "(did you mean 'KafkaEventTrigger'?)"),
    ],
)
def test_an_import_of_ours_that_is_not_there_names_the_one_that_is_meant(
    tmp_path: Path, statement: str, meant: str
) -> None:
    assert error_in(tmp_path, f"{statement}\n").endswith(meant)


def test_each_of_airflows_arguments_stands_for_one_that_something_has() -> None:
    known = {name for _, _, name in CALLS} | OPTION_NAMES
    assert set(ARGUMENTS.values()) <= known


def test_advice_is_for_arguments_that_some_function_lacks() -> None:
    options = set(inspect.signature(DAG).parameters)
    assert all(name not in options or name not in OPTION_NAMES for name in ADVICE)


def test_the_decorators_suggest_their_own_options_too() -> None:
    with pytest.raises(TriggererError) as raised:
        asset(schedule=None, nam="x")
    assert raised.value.hint == "did you mean 'name'?"
    with pytest.raises(TriggererError) as raised:
        triggerer.task(retrys=1)  # type: ignore[call-overload]
    assert raised.value.hint == "did you mean 'retries'?"
