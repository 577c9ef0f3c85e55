"""A Spark session with Delta, Iceberg, PostgreSQL's driver and S3, the outputs of tries, and object stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import pytest

from tests.services.availability import skip_or_fail
from tests.services.clusters.spark_jars import SparkJars
from tests.services.process import ServiceUnavailable
from tests.services.storage.gcs import Gcs, open_gcs
from tests.services.storage.s3 import S3, open_s3
from triggerer.worker.output import Output
from triggerer.worker.spark import SparkSettings, close_session, open_session

S = TypeVar("S")
TryAgain = Callable[..., Output]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    yield from _opened(open_s3)


@pytest.fixture(scope="module")
def gcs() -> Iterator[Gcs]:
    yield from _opened(open_gcs)


def _opened(open_store: Callable[[str], AbstractContextManager[S]]) -> Iterator[S]:
    try:
        with open_store("lake") as opened:
            yield opened
    except ServiceUnavailable as absent:
        skip_or_fail(str(absent))


@pytest.fixture(params=["s3", "gcs"])
def object_store(request: pytest.FixtureRequest) -> S3 | Gcs:
    found: S3 | Gcs = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def spark(spark_jars: SparkJars, s3: S3, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    home = tmp_path_factory.mktemp("output")
    own, of_s3 = spark_jars.conf(("delta", "iceberg", "jdbc"), home / "ice"), s3.conf()
    conf = own | of_s3 | {"spark.jars": f"{own['spark.jars']},{of_s3['spark.jars']}"}
    # By default, Delta's own computations have 200 and 50 partitions.
    conf |= {"spark.sql.shuffle.partitions": "2", "spark.databricks.delta.snapshotPartitions": "2"}
    settings = SparkSettings(master="local[2]", conf=conf)
    session = open_session(settings, home=home, app_name="tests")
    yield session
    close_session(session)


@pytest.fixture
def try_again() -> TryAgain:
    """A function that makes the argument `output` for another try of one task."""
    return lambda token="f" * 32, *, current=lambda: True: Output(token, current)
