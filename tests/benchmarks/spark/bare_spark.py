"""`python -m tests.benchmarks.spark.bare_spark --modes local,classic,connect`: a run's first row beside bare PySpark.

In each mode, two times are measured:

- with the product and a warm worker: from the queueing of a run to its first row.
- with a bare PySpark client and a warm driver or server: from the request for a new session to its first row.

The row is the first of a DataFrame of three Python rows. The first measurement is `cold`: it includes the start of the
driver and, for the product, of the worker.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import psutil

from tests.benchmarks.report import Figures, Report, Row, surroundings
from tests.executor.conftest import House, open_house
from tests.services.clusters.spark_cluster import open_spark_cluster
from tests.services.clusters.spark_connect import open_connect_server
from triggerer.store.schema import migrate

_ROWS: Final = [{"n": 1}, {"n": 2}, {"n": 3}]
_PAUSE_S: Final = 0.5
"""Seconds of idling before each run. The worker prepares its next process meanwhile."""
_DAG: Final = """
    with DAG("first_row", schedule=None):
        @task
        def first_row(spark):
            began = time.monotonic()
            assert spark.createDataFrame([{"n": 1}, {"n": 2}, {"n": 3}]).first()["n"] == 1
            print(began, time.monotonic(), file=open("STAMPS", "a"))
        first_row()
    """


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modes", default="local,classic,connect")
    parser.add_argument("--runs", type=int, default=15)
    arguments = parser.parse_args()
    # Spark's executors must find the driver on this machine, and use this Python.
    os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    report = Report(None)
    report.say(f"{surroundings()}")
    rows = []
    for mode in arguments.modes.split(","):
        with _place(mode) as spark:
            rows.append(_measure(mode, spark, arguments.runs))
            report.say(f"{rows[-1]}")
    title = "First row in seconds: a run beside a new session of bare PySpark"
    report.show(Figures("bare-spark", title, tuple(rows), "warm: medians; load: at the end"))


@contextmanager
def _place(mode: str) -> Iterator[dict[str, Any]]:
    """Yield the values of `[spark]` for a mode, while the mode's cluster or server runs."""
    if mode == "classic":
        with open_spark_cluster() as cluster:
            yield {
                "mode": "classic",
                "master": cluster.url,
                "conf": {"spark.executor.memory": "600m"},
            }
    elif mode == "connect":
        with open_connect_server() as server:
            yield {"mode": "connect", "remote": server.remote}
    else:
        yield {"mode": "local", "master": "local[2]"}


def _measure(mode: str, spark: dict[str, Any], runs: int) -> Row:
    product = anyio.run(_product, spark, runs)
    bare = _bare(spark, runs)
    return {
        "mode": mode,
        "run, cold": round(product[0], 2),
        "bare, cold": round(bare[0], 2),
        "run, warm": round(statistics.median(product[3:]), 3),
        "bare, warm": round(statistics.median(bare[3:]), 3),
        "difference": round(statistics.median(product[3:]) - statistics.median(bare[3:]), 3),
        "load": round(psutil.getloadavg()[0], 2),
    }


async def _product(spark: dict[str, Any], runs: int) -> list[float]:
    with tempfile.TemporaryDirectory(prefix="triggerer-bench-") as name:
        folder = Path(name)
        stamps = folder / "stamps"
        async with open_house(f"sqlite:///{folder / 'runs.db'}", folder) as house:
            await migrate.upgrade(house.database)
            await house.add_dag("first_row", _DAG.replace("STAMPS", str(stamps)), needs_spark=True)
            return [end - queued for queued, end in await _run_all(house, spark, runs, stamps)]


async def _run_all(
    house: House, spark: dict[str, Any], runs: int, stamps: Path
) -> list[tuple[float, float]]:
    queued = []
    async with house.executor(workers=1, spark=spark, prewarm=False):
        for _ in range(runs):
            await anyio.sleep(_PAUSE_S)
            queued.append(time.monotonic())
            (pk,) = await house.queue("first_row")
            (run,) = await house.ended(pk, timeout=300)
            assert run.state == "success", run.error
    ends = [float(line.split()[1]) for line in stamps.read_text().splitlines()]
    return list(zip(queued, ends, strict=True))


def _bare(spark: dict[str, Any], runs: int) -> list[float]:
    from pyspark.sql import SparkSession

    new: Callable[[], Any]
    if "remote" in spark:
        began = time.monotonic()

        def new() -> Any:
            return SparkSession.builder.remote(spark["remote"]).create()
    else:
        began = time.monotonic()
        builder = SparkSession.builder.master(spark["master"]).config("spark.ui.enabled", "false")
        for key, value in spark.get("conf", {}).items():
            builder = builder.config(key, value)
        first = builder.getOrCreate()
        new = first.newSession
    taken = []
    for number in range(runs):
        if number:
            began = time.monotonic()
        session = new()
        row = session.createDataFrame(_ROWS).first()
        assert row is not None
        assert row.n == 1
        taken.append(time.monotonic() - began)
        if "remote" in spark:
            session.stop()
    if "remote" not in spark:
        first.stop()
    return taken


if __name__ == "__main__":
    main()
