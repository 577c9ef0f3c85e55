"""A cancellation or a timeout ends a run's Spark jobs in every mode. The next run has the same JVM."""

import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.executor.conftest import House
from tests.services.availability import service
from tests.services.clusters.spark import TrainedHome
from tests.services.clusters.spark_cluster import QUICK_JAVA, SparkCluster, open_spark_cluster
from tests.services.clusters.spark_connect import open_connect_server

pytestmark = [pytest.mark.timeout(600), pytest.mark.soak]

SOURCE = """
    from pyspark.sql.functions import udf

    def mark(n):
        for _ in range(600):
            with open(MARKS, "a") as file:
                file.write("x")
            time.sleep(0.1)
        return n

    with DAG("marks"):
        @task(timeout=timedelta(seconds=LIMIT))
        def marks(spark, params):
            assert spark.range(3).count() == 3
            if params["long"]:
                spark.range(2).repartition(2).select(udf(mark, "long")("id")).collect()
        marks()
    """
NO_LIMIT_S = 500


@pytest.fixture(scope="module")
def cluster() -> Iterator[SparkCluster]:
    with service(open_spark_cluster(cores=1, memory="1500m", workers=2)) as opened:
        yield opened


@pytest.fixture(scope="module")
def remote() -> Iterator[str]:
    with service(open_connect_server()) as server:
        yield server.remote


@pytest.fixture(params=["local", "classic", "submit", "connect"])
def spark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", QUICK_JAVA)
    mode: str = request.param
    if mode == "local":
        return {"mode": mode, "master": "local[2]"}
    if mode == "connect":
        return {"mode": mode, "remote": request.getfixturevalue("remote")}
    url = request.getfixturevalue("cluster").url
    return {"mode": mode, "master": url, "conf": {"spark.executor.memory": "600m"}}


@pytest.mark.parametrize("limit_s", [NO_LIMIT_S, 45], ids=["cancelled", "timed out"])
async def test_no_work_goes_on_and_the_next_run_has_the_same_worker(
    house: House, trained_home: TrainedHome, spark: dict[str, Any], tmp_path: Path, limit_s: int
) -> None:
    trained_home.lend_archive(house.home)
    marks = tmp_path / "marks"
    source = SOURCE.replace("MARKS", repr(str(marks))).replace("LIMIT", str(limit_s))
    await house.add_dag("marks", source, needs_spark=True)
    async with house.executor(workers=1, prewarm=False, spark=spark) as executor:
        await house.ended(*await house.queue("marks", params={"long": False}), timeout=200)
        pids = executor.worker_pids
        (pk,) = await house.queue("marks", params={"long": True})
        await _until_there(marks)
        if limit_s == NO_LIMIT_S:
            await house.cancel(pk)
        (run,) = await house.ended(pk, timeout=100)
        await anyio.sleep(1)
        left = marks.stat().st_size
        await anyio.sleep(2)  # no event shows that the marks have stopped
        assert marks.stat().st_size == left
        (after,) = await house.ended(
            *await house.queue("marks", params={"long": False}), timeout=200
        )
        assert executor.worker_pids == pids
    assert (after.state, after.error) == ("success", None)
    if limit_s == NO_LIMIT_S:
        assert (run.state, run.error) == ("cancelled", "cancelled")
    else:
        assert run.state == "failed"
        assert f"the task did not end within {timedelta(seconds=limit_s)}" in (run.error or "")


async def _until_there(path: Path) -> None:
    with anyio.fail_after(120):
        while not path.exists():  # noqa: ASYNC110  (another process makes it)
            await anyio.sleep(0.05)
