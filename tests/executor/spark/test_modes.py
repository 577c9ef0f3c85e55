"""Three DAGs run unchanged in every mode."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.executor.conftest import House
from tests.services.availability import service
from tests.services.clusters.spark import TrainedHome
from tests.services.clusters.spark_cluster import QUICK_JAVA, SparkCluster, open_spark_cluster
from tests.services.clusters.spark_connect import open_connect_server

pytestmark = [pytest.mark.timeout(900), pytest.mark.soak]

SOURCE = """
    import pandas as pd
    from pyspark.sql.functions import col, pandas_udf, udf

    with DAG("aggregates"):
        @task
        def aggregate(spark):
            rows = spark.range(9000).selectExpr("id % 3 AS key").groupBy("key").count().collect()
            assert sorted(row["count"] for row in rows) == [3000] * 3
        aggregate()

    with DAG("functions"):
        @task
        def call(spark):
            double = udf(lambda n: 2 * n, "long")
            halve = pandas_udf(lambda n: n / 2, "double")
            row = spark.range(5).select(double("id").alias("d"), halve("id").alias("h")).collect()[-1]
            assert (row.d, row.h) == (8, 2.0)
        call()

    with DAG("appends", spark_conf={"spark.sql.shuffle.partitions": 3}):
        @task
        def append(spark):
            assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
            spark.range(1000).write.mode("append").parquet(FOLDER)
            assert spark.read.parquet(FOLDER).count() == 1000
        append()
    """
DAGS = ("aggregates", "functions", "appends")


@pytest.fixture(scope="module")
def cluster() -> Iterator[SparkCluster]:
    with service(open_spark_cluster(cores=1, memory="1500m", workers=2)) as opened:
        yield opened


@pytest.fixture(scope="module")
def remote() -> Iterator[str]:
    with service(open_connect_server()) as server:
        yield server.remote


@pytest.fixture(params=["local", "classic", "submit", "connect"])
def spark(request: pytest.FixtureRequest) -> dict[str, Any]:
    mode: str = request.param
    if mode == "local":
        return {"mode": mode, "master": "local[2]"}
    if mode == "connect":
        return {"mode": mode, "remote": request.getfixturevalue("remote")}
    url = request.getfixturevalue("cluster").url
    return {"mode": mode, "master": url, "conf": {"spark.executor.memory": "600m"}}


async def test_the_same_dags_run_in_every_mode(
    house: House,
    trained_home: TrainedHome,
    spark: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", QUICK_JAVA)
    trained_home.lend_archive(house.home)
    source = SOURCE.replace("FOLDER", repr(str(tmp_path / "rows")))
    for dag_id in DAGS:
        await house.add_dag(dag_id, source, needs_spark=True)
    pks = [(await house.queue(dag_id))[0] for dag_id in DAGS]
    async with house.executor(workers=1, prewarm=False, spark=spark) as _:
        runs = await house.ended(*pks, timeout=500)
    assert [(run.state, run.error) for run in runs] == [("success", None)] * 3
