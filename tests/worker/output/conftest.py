"""A Spark session with Delta, Iceberg and PostgreSQL's driver, and the outputs of tries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.services.spark_jars import SparkJars
from triggerer.worker.output import Output
from triggerer.worker.spark import SparkSettings, close_session, open_session

TryAgain = Callable[..., Output]


@pytest.fixture(scope="module")
def spark(spark_jars: SparkJars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    home = tmp_path_factory.mktemp("output")
    conf = spark_jars.conf(("delta", "iceberg", "jdbc"), home / "ice")
    # Delta's own computations would otherwise have 50 and 200 parts.
    conf |= {"spark.sql.shuffle.partitions": "2", "spark.databricks.delta.snapshotPartitions": "2"}
    settings = SparkSettings(master="local[2]", conf=conf)
    session = open_session(settings, home=home, app_name="tests")
    yield session
    close_session(session)


@pytest.fixture
def try_again() -> TryAgain:
    """Make the argument `output` of another try of one task."""
    return lambda token="f" * 32, *, current=lambda: True: Output(token, current)
