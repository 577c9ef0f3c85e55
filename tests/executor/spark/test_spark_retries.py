"""The next try of a task begins only when no work of the previous try runs on Spark."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.executor.conftest import House
from tests.services.availability import service
from tests.services.clusters.spark import TrainedHome
from tests.services.clusters.spark_cluster import QUICK_JAVA, open_spark_cluster
from tests.services.clusters.spark_connect import open_connect_server

pytestmark = pytest.mark.timeout(600)

SOURCE = """
    from pyspark.sql.functions import udf

    def work(number, folder):
        if number == 0:
            # Its sibling is at work when this one fails.
            while not list(Path(folder).glob("mark-*")):
                time.sleep(0.05)
            raise ValueError("no luck")
        for mark in range(100):
            Path(folder, f"mark-{mark}").touch()
            time.sleep(0.1)

    with DAG("tries_again"):
        @task(retries=1)
        def works(spark, params):
            folder = params["folder"]
            begin = Path(folder, "again")
            if Path(folder, "mark-0").exists():
                begin.touch()
                time.sleep(3)
                return
            frame = spark.range(0, 2, 1, 2)
            frame.select(udf(lambda n: work(n, folder), "string")("id")).collect()
        works()
    """


async def _marks_of_the_former_try_end_before(
    house: House, home: TrainedHome, folder: Path, spark: dict[str, Any]
) -> None:
    home.lend_archive(house.home)
    folder.mkdir()
    await house.add_dag("tries_again", SOURCE, needs_spark=True)
    (pk,) = await house.queue("tries_again", params={"folder": str(folder)})
    async with house.executor(workers=1, prewarm=False, spark=spark) as _:
        (run,) = await house.ended(pk, timeout=300)
    assert (run.state, run.error) == ("success", None)
    marks = [one.stat().st_mtime for one in folder.glob("mark-*")]
    assert max(marks) < (folder / "again").stat().st_mtime
    assert len(marks) < 100


@pytest.mark.full
async def test_the_python_workers_of_a_failed_try_are_gone_before_the_next_begins(
    house: House, trained_home: TrainedHome, tmp_path: Path
) -> None:
    spark = {"mode": "local", "master": "local[2]"}
    await _marks_of_the_former_try_end_before(house, trained_home, tmp_path / "marks", spark)


@pytest.fixture(params=["classic", "submit", "connect"])
def elsewhere(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    if request.param == "connect":
        with service(open_connect_server()) as server:
            yield {"mode": "connect", "remote": server.remote}
        return
    with service(open_spark_cluster(cores=2, memory="1500m", workers=1)) as cluster:
        conf = {"spark.executor.memory": "600m"}
        yield {"mode": request.param, "master": cluster.url, "conf": conf}


@pytest.mark.soak
async def test_work_elsewhere_is_over_before_the_next_try_begins(
    house: House,
    trained_home: TrainedHome,
    elsewhere: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", QUICK_JAVA)
    await _marks_of_the_former_try_end_before(house, trained_home, tmp_path / "marks", elsewhere)


STUCK = """
    with DAG("sticks", max_parallel_tasks=PARALLEL):
        @task(retries=1, timeout=25)
        def sticks(spark, params):
            driver = Path(params["folder"], "driver")
            now = str(spark._jvm.java.lang.ProcessHandle.current().pid())
            if driver.exists():
                assert driver.read_text() != now
                return
            driver.write_text(now)
            # One row that takes minutes: Spark notices between two rows that a task was cancelled.
            inner = "aggregate(sequence(1, 40000 + id), 0L, (b, y) -> b + y)"
            outer = f"aggregate(sequence(1, 40000 + id), 0L, (a, x) -> a + x * {inner}) AS n"
            spark.range(1).selectExpr(outer).collect()
        sticks()
    """


@pytest.mark.soak
async def test_a_driver_whose_work_does_not_end_is_killed_and_the_next_try_gets_another(
    house: House, trained_home: TrainedHome, tmp_path: Path
) -> None:
    trained_home.lend_archive(house.home)
    await house.add_dag("sticks", STUCK.replace("PARALLEL", "1"), needs_spark=True)
    (pk,) = await house.queue("sticks", params={"folder": str(tmp_path)})
    async with house.executor(workers=1, prewarm=False) as _:
        (run,) = await house.ended(pk, timeout=300)
    assert (run.state, run.error) == ("success", None)
    assert "does not end, so its driver is killed" in house.log(run)


@pytest.mark.soak
async def test_one_of_several_tasks_is_not_tried_again_beside_its_own_work(
    house: House, trained_home: TrainedHome, tmp_path: Path
) -> None:
    trained_home.lend_archive(house.home)
    await house.add_dag("sticks", STUCK.replace("PARALLEL", "2"), needs_spark=True)
    (pk,) = await house.queue("sticks", params={"folder": str(tmp_path)})
    async with house.executor(workers=1, prewarm=False) as _:
        (run,) = await house.ended(pk, timeout=300)
    assert run.state == "failed"
    assert "does not end, so the task is not tried again" in (run.error or "")
