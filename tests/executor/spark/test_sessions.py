"""Runs on Spark: a session is opened ahead, kept between runs, and dies with its worker."""

import os
import re
import signal

import anyio
import psutil
import pytest
from structlog.testing import capture_logs

from tests.executor.conftest import House
from tests.executor.leases.test_deaths import _all_gone, _descendants
from tests.services.clusters.spark import TrainedHome
from tests.services.process import is_alive
from triggerer.executor import Executor

# A session takes a minute to open on a machine that is busy enough.
pytestmark = pytest.mark.timeout(600)

READS = """
    from pyspark.sql.functions import udf

    asset = Asset("x-in")

    def double(n):
        return 2 * n

    with DAG("reads", schedule=asset):
        @task(outlets=[Asset("x-out")])
        def count(spark, triggering_asset_events, outlet_events, dag_run):
            frame = triggering_asset_events[asset].to_dataframe(spark)
            rows = frame.selectExpr("sum(extra.n) AS total", "count(*) AS rows").collect()
            dag_run.mark("first_row")
            doubled = frame.limit(3).select(udf(double, "int")("extra.n").alias("d")).collect()
            outlet_events["x-out"].extra = {
                **rows[0].asDict(),
                "doubled": sorted(row.d for row in doubled),
                "driver": spark._jvm.java.lang.ProcessHandle.current().pid(),
                "process": os.getpid(),
            }
        count()
    """


@pytest.fixture
async def spark_house(house: House, trained_home: TrainedHome) -> House:
    trained_home.lend_archive(house.home)
    await house.add_dag("reads", READS, needs_spark=True)
    return house


@pytest.mark.soak
async def test_runs_share_a_driver_that_was_opened_ahead(spark_house: House) -> None:
    house = spark_house
    first, second = await house.queue("reads", 2, state="failed")
    await house.trigger_with(first, "reads", "x-in", [{"n": n} for n in range(5000)])
    async with house.executor() as executor:
        await _warm(executor)
        runs = []
        for pk in (first, second):
            await house.change_run(pk, state="queued")
            house.database.wakeups.publish_everything()
            runs += await house.ended(pk, timeout=240)
    assert [(run.state, run.error) for run in runs] == [("success", None)] * 2
    events = await house.events("x-out")
    drivers = {event.extra.pop("driver") for event in events}
    assert len(drivers) == 1
    assert len({event.extra.pop("process") for event in events}) == 2
    assert [event.extra for event in events] == [
        {"total": sum(range(5000)), "rows": 5000, "doubled": [0, 2, 4]},
        {"total": None, "rows": 0, "doubled": []},
    ]
    assert re.search(r"mark first_row \d+\.\d+", house.log(runs[0]))


async def test_a_session_that_is_cut_short_by_a_stop_is_no_death(spark_house: House) -> None:
    with capture_logs() as logs:
        async with spark_house.executor() as executor:
            await _warm(executor)
    assert not [line for line in logs if "died" in line["event"]]


async def test_a_worker_that_dies_while_it_opens_a_session_is_told(spark_house: House) -> None:
    with capture_logs() as logs:
        async with spark_house.executor() as executor:
            await _warm(executor)
            os.kill(executor.worker_pids[0], signal.SIGKILL)
            with anyio.fail_after(20):
                while True:
                    if logs:
                        break
                    await anyio.sleep(0.02)
    assert [(log["event"], log["code"]) for log in logs] == [
        ("a worker died while it opened Spark", -signal.SIGKILL)
    ]


@pytest.mark.long
async def test_a_killed_jvm_fails_its_run_and_the_next_one_gets_another(
    spark_house: House,
) -> None:
    house = spark_house
    marker = house.folder / "marker"
    await house.add_dag(
        "long",
        """
        from pyspark.sql.functions import udf

        def touch(n):
            Path(n).touch()
            time.sleep(300)

        with DAG("long"):
            @task
            def waits(spark, params):
                frame = spark.createDataFrame([(params["marker"],)], "n string")
                frame.select(udf(touch, "string")("n")).collect()
            waits()
        """,
        needs_spark=True,
    )
    async with house.executor(workers=1, prewarm=False) as executor:
        (pk,) = await house.queue("long", params={"marker": str(marker)})
        with anyio.fail_after(120):
            while True:
                if marker.exists():
                    break
                await anyio.sleep(0.05)
        family = _descendants(executor.worker_pids[0])
        java = [process for process in family if process.name() == "java"]
        assert len(java) == 1
        os.kill(java[0].pid, signal.SIGKILL)
        (run,) = await house.ended(pk, timeout=240)
        assert run.state == "failed"
        assert (run.error or "").startswith(
            "task waits failed: Spark's JVM was killed, as the kernel does when memory runs out."
        )
        # A cancellation ends the Python functions, but not the JVM.
        marker.unlink()
        (pk,) = await house.queue("long", params={"marker": str(marker)})
        with anyio.fail_after(120):
            while True:
                if marker.exists():
                    break
                await anyio.sleep(0.05)
        family = _descendants(executor.worker_pids[0])
        (jvm,) = [process for process in family if process.name() == "java"]
        # The children of the daemon that starts Python workers.
        functions = [one for child in jvm.children() for one in child.children()]
        assert functions
        await house.cancel(pk)
        (run,) = await house.ended(pk, timeout=240)
        assert run.state == "cancelled"
        await _all_gone(functions)
        assert is_alive(jvm)
    await _all_gone(family)


async def _warm(executor: Executor) -> None:
    """Wait until a worker has a JVM. The session may not be open yet, so a run that arrives may have to wait for it."""
    with anyio.fail_after(120):
        while True:
            children = [
                c
                for pid in executor.worker_pids
                for c in psutil.Process(pid).children(recursive=True)
            ]
            if any(is_java(child) for child in children):
                return
            await anyio.sleep(0.05)


def is_java(process: psutil.Process) -> bool:
    """Return whether the process is a JVM."""
    try:
        return process.name() == "java"
    except psutil.NoSuchProcess:
        # The process has just ended, like some that Spark's launcher starts.
        return False
