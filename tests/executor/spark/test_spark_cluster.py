"""Runs on a cluster whose cores do not suffice for all sessions at once."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.executor.conftest import House
from tests.services.clusters.spark_cluster import QUICK_JAVA, SparkCluster
from triggerer.store.schema.models import DagRun

TIMEOUT_S = 200
pytestmark = pytest.mark.timeout(600)

COUNTS = """
    with DAG("counts"):
        @task
        def count(spark):
            rows = spark.range(1000).selectExpr("id % 3 AS key").groupBy("key").count().collect()
            assert sorted(row["count"] for row in rows) == [333, 333, 334]
        count()
    """
HOLDS = """
    with DAG("holds"):
        @task
        def hold(spark, params):
            folder = Path(params["folder"])

            def take_a_core(number):
                (folder / f"begun-{number}").touch()
                while not (folder / "open").exists():
                    time.sleep(0.05)

            spark.sparkContext.parallelize(range(2), 2).foreach(take_a_core)
        hold()
    """


@pytest.fixture
async def cluster_house(house: House, monkeypatch: pytest.MonkeyPatch) -> House:
    # Use loopback for the driver's address, and our Python in Spark's executors. By default, Spark takes the host's
    # address and the first Python on PATH.
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", QUICK_JAVA)
    await house.add_dag("counts", COUNTS, needs_spark=True)
    await house.add_dag("holds", HOLDS, needs_spark=True)
    return house


class Gate:
    """A run of `holds`, whose two tasks keep a core each until the gate opens."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.params = {"folder": str(folder)}

    async def begun(self) -> None:
        with anyio.fail_after(TIMEOUT_S):
            while True:
                if len(list(self.folder.glob("begun-*"))) == 2:
                    break
                await anyio.sleep(0.05)

    def open(self) -> None:
        (self.folder / "open").touch()


def on(cluster: SparkCluster) -> dict[str, Any]:
    return {"mode": "classic", "master": cluster.url}


async def waits(house: House, pk: int, cluster: SparkCluster) -> DagRun:
    # The run may first wait for a session, so wait for this reason.
    executor = f"an executor on {cluster.url} for "
    run = await house.until(pk, lambda run: (run.waiting_for or "").startswith(executor), TIMEOUT_S)
    assert run.state == "running"
    assert run.waiting_for is not None
    assert "1 core and 1g of memory" in run.waiting_for
    return run


def said_of_waits(house: House, run: DagRun) -> list[str]:
    lines = [line.split(" ", 2)[2] for line in house.log(run).splitlines()]
    return [line for line in lines if "the run wait" in line]


@pytest.mark.long
@pytest.mark.soak
async def test_sessions_share_a_cluster_that_has_too_few_cores_for_all(
    cluster_house: House, spark_cluster: SparkCluster, tmp_path: Path
) -> None:
    house = cluster_house
    first, last = Gate(tmp_path / "first"), Gate(tmp_path / "last")
    async with house.executor(workers=2, spark=on(spark_cluster)):
        # A run that finds no core free says so, and is the next to get one.
        (first_pk,) = await house.queue("holds", params=first.params)
        await first.begun()
        (pk,) = await house.queue("counts")
        run = await waits(house, pk, spark_cluster)
        said = said_of_waits(house, run)
        assert said[-1] == f"WARNING triggerer.run: the run waits for {run.waiting_for}"
        # Queue a third run, which could take both cores when the first run ends. The second run has waited
        # longer, so it must get the cores first.
        (last_pk,) = await house.queue("holds", params=last.params)
        first.open()
        (run,) = await house.ended(pk, timeout=TIMEOUT_S)
        assert (run.state, run.error) == ("success", None)
        assert said_of_waits(house, run)[-1].endswith(" s, and continues")
        last.open()
        runs = await house.ended(first_pk, last_pk, timeout=TIMEOUT_S)
        assert [(run.state, run.error) for run in runs] == [("success", None)] * 2


@pytest.mark.soak  # takes minutes
async def test_runs_outlive_workers_and_masters_of_the_cluster_that_end_and_come_back(
    cluster_house: House, spark_cluster: SparkCluster, tmp_path: Path
) -> None:
    house = cluster_house
    gate = Gate(tmp_path / "gate")
    await asyncio.to_thread(spark_cluster.daemon.kill)
    async with house.executor(workers=1, spark=on(spark_cluster)) as executor:
        (pk,) = await house.queue("holds", params=gate.params)
        await waits(house, pk, spark_cluster)
        await asyncio.to_thread(spark_cluster.daemon.start)
        await gate.begun()
        await house.until(pk, lambda run: run.waiting_for is None, TIMEOUT_S)
        await asyncio.to_thread(spark_cluster.daemon.kill)
        await waits(house, pk, spark_cluster)
        gate.open()
        await asyncio.to_thread(spark_cluster.daemon.start)
        (run,) = await house.ended(pk, timeout=TIMEOUT_S)
        assert (run.state, run.error) == ("success", None)
        said = said_of_waits(house, run)
        assert sum("waits for an executor" in line for line in said) == 2
        assert said[-1].endswith(" s, and continues")

        # A new master does not know the sessions that its predecessor had.
        pids = executor.worker_pids
        await asyncio.to_thread(spark_cluster.kill)
        await asyncio.to_thread(spark_cluster.start)
        (run,) = await house.ended(*await house.queue("counts"), timeout=TIMEOUT_S)
        assert (run.state, run.error) == ("success", None)
        assert executor.worker_pids == pids
        ended = "the Spark session has ended: its master no longer answers it; opening another one"
        assert ended in house.log(run)

        runs = await house.ended(*await house.queue("counts", 3), timeout=TIMEOUT_S)
        assert [(run.state, run.error) for run in runs] == [("success", None)] * 3
