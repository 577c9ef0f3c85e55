"""Which Python executes a run's functions."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from triggerer.config import SparkSettings
from triggerer.worker.spark.sessions.classic import driver_environment

CLUSTER = SparkSettings(master="spark://h:7077")
NAMED = SparkSettings(master="spark://h:7077", conf={"spark.pyspark.python": "/opt/py/bin/python"})


@pytest.mark.parametrize(
    ("settings", "variable", "python"),
    [
        (NAMED, None, "/opt/py/bin/python"),
        (NAMED, "/usr/bin/python3", "/opt/py/bin/python"),
        (CLUSTER, None, None),
        (SparkSettings(), None, sys.executable),
    ],
)
def test_the_setting_wins_over_the_variable(
    settings: SparkSettings,
    variable: str | None,
    python: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    if variable is not None:
        monkeypatch.setenv("PYSPARK_PYTHON", variable)
    installation: Any = SimpleNamespace(java_home="/java", spark_home="/spark")
    assert driver_environment(settings, installation)["PYSPARK_PYTHON"] == python


def test_without_the_setting_the_variable_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/python3")
    installation: Any = SimpleNamespace(java_home="/java", spark_home="/spark")
    assert "PYSPARK_PYTHON" not in driver_environment(CLUSTER, installation)
