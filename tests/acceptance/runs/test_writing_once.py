"""Processes are killed at random moments of runs that write, and each output is still written once.

The tests kill:

- the service's processes: the executor, the workers, the processes of runs, and the drivers
- a Spark Connect server
- workers and executors of a Spark standalone cluster

Each run must succeed once. No attempt may work after the next attempt has begun, and no process may be left behind.

`TRIGGERER_KILLS` is the number of kills in each test. `TRIGGERER_SEED` is the seed of their random moments.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg
import pyarrow.dataset
import pytest

from tests.acceptance.killing import (
    OWN,
    ROWS,
    check_ends,
    family,
    having,
    kill_at_random,
    kill_one_of,
    number_of_kills,
)
from tests.acceptance.standalone import Standalone, serving
from tests.services.availability import service as ready
from tests.services.clusters.spark_cluster import SparkCluster, open_spark_cluster
from tests.services.clusters.spark_connect import ConnectServer, open_connect_server
from tests.services.clusters.spark_jars import SparkJars
from tests.services.databases.postgres import PostgresServer
from tests.services.process import still_alive

pytestmark = [pytest.mark.soak, pytest.mark.timeout(5000)]

DAGS = """
import json
import time
import uuid
from pathlib import Path

from triggerer import DAG, Asset, task

FOLDER = Path(__file__).resolve().parent.parent
written = Asset("x-written", name="written")


with DAG("writes", schedule=None):

    @task(outlets=[written])
    def write(spark, output, dag_run):
        from pyspark.sql.functions import lit, udf

        path, execution = str(FOLDER / "marks"), [dag_run.run_id, dag_run.attempt, uuid.uuid4().hex]

        def mark(what):
            with open(path, "a") as marks:
                marks.write(json.dumps([*execution, what, time.monotonic()]) + "\\n")

        def slow(number):
            with open(path, "a") as marks:
                marks.write(json.dumps([*execution, "works", time.monotonic()]) + "\\n")
            time.sleep(0.05)
            return number

        mark("begins")
        rows = spark.range(0, 40, 1, 8).withColumn("id", udf(slow, "long")("id"))
        rows = rows.withColumn("token", lit(output.token))
        WRITES
        mark("ends")

    write()
"""
PARQUET: Final = """\
        mark(output.parquet(rows, str(FOLDER / "rows")))
        mark(output.parquet(rows, str(FOLDER / "more"), partition_by="token"))
"""
TABLES: Final = """\
        spark.sql("CREATE TABLE IF NOT EXISTS ice.db.t (id BIGINT, token STRING) USING iceberg")
        mark(output.delta(rows, str(FOLDER / "delta")))
        mark(output.iceberg(rows, "ice.db.t"))
        mark(output.jdbc(rows, "URL", "written", key=()))
"""
COUNTS: Final = """

with DAG("counts", schedule=None):

    @task
    def count(spark):
        frames = {
            "delta": spark.read.format("delta").load(str(FOLDER / "delta")),
            "iceberg": spark.table("ice.db.t"),
            "jdbc": spark.read.jdbc("URL", "written", properties={"driver": "org.postgresql.Driver"}),
        }
        found = {
            name: [[row["token"], row["id"]] for row in frame.select("token", "id").collect()]
            for name, frame in frames.items()
        }
        (FOLDER / "rows.json").write_text(json.dumps(found))

    count()
"""
ONE_WORKER: Final = "[executor]\nworkers = 1\n"
"""With one worker, each kill meets the worker that executes the run."""


def _dags(writes: str, more: str = "", url: str = "") -> str:
    return (DAGS.replace("        WRITES\n", writes) + more).replace("URL", url)


@contextmanager
def _writing(folder: Path, settings: str = "") -> Iterator[Standalone]:
    """Start a service whose DAG writes two Parquet outputs."""
    with serving(folder, _dags(PARQUET), count=1, settings=ONE_WORKER + settings) as service:
        service.run("dags", "unpause", "writes")
        yield service


def test_runs_that_are_killed_at_random_moments_write_once(tmp_path: Path, seed: int) -> None:
    with _writing(tmp_path) as service:
        kill_at_random(service, random.Random(seed), OWN, kills=number_of_kills(50))
        _check(service)


def test_tables_of_three_formats_are_written_once(
    tmp_path: Path, seed: int, spark_jars: SparkJars, postgres_server: PostgresServer
) -> None:
    database = f"once{os.getpid()}"
    postgres_server.create_database(database)
    asyncio.run(_create_table(postgres_server.url(database).replace("+asyncpg", "")))
    url = f"jdbc:postgresql://127.0.0.1:{postgres_server.port}/{database}?user=postgres"
    conf = spark_jars.conf(("delta", "iceberg", "jdbc"), tmp_path / "ice")
    conf |= {"spark.sql.shuffle.partitions": "2", "spark.databricks.delta.snapshotPartitions": "2"}
    settings = "[spark.conf]\n" + "".join(f'"{key}" = "{value}"\n' for key, value in conf.items())
    dags = _dags(TABLES, COUNTS, url)
    try:
        with serving(tmp_path, dags, count=2, settings=ONE_WORKER + settings) as service:
            for dag in ("writes", "counts"):
                service.run("dags", "unpause", dag)
            kill_at_random(service, random.Random(seed), OWN, kills=number_of_kills(12))
            runs = check_ends(service)
            service.run("dags", "trigger", "counts")
            assert [run["state"] for run in service.ended("counts")] == ["success"]
    finally:
        postgres_server.drop_database(database)
    for name, found in json.loads((tmp_path / "rows.json").read_text()).items():
        _check_rows(name, found, runs)


async def _create_table(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE TABLE written (id BIGINT, token TEXT)")
    await connection.close()


def test_a_connect_server_that_is_killed_at_random_moments_has_written_once(
    tmp_path: Path, seed: int
) -> None:
    def kill_server(_: Standalone) -> bool:
        # Kill only the JVM. Its Python workers must end by themselves.
        server.daemon.stop(signal.SIGKILL)
        server.start()
        return True

    with ready(open_connect_server(has_page=True)) as server:
        settings = f'[spark]\nremote = "{server.remote}"\n'
        with _writing(tmp_path, settings) as service:
            victims = {name: kill for name, kill in OWN.items() if name != "driver"}
            victims["server"] = kill_server
            kill_at_random(service, random.Random(seed), victims, kills=number_of_kills(12))
            _check(service)
            _check_nothing_runs_on(server)


def _check_nothing_runs_on(server: ConnectServer) -> None:
    assert server.running_jobs() == []


def test_sparks_own_worker_and_executor_are_killed_at_random_moments(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)

    def kill_spark_worker(_: Standalone) -> bool:
        # Its executors notice by themselves.
        daemon = chance.choice((cluster.daemon, *cluster.others))
        daemon.stop(signal.SIGKILL)
        daemon.start()
        return True

    def kill_spark_executor(_: Standalone) -> bool:
        found = cluster.executors()
        return kill_one_of(chance.sample(found, len(found)))

    with ready(open_spark_cluster(workers=2, cores=1)) as cluster:
        settings = (
            f'[spark]\nmode = "classic"\nmaster = "{cluster.url}"\n'
            '[spark.conf]\n"spark.executor.memory" = "600m"\n'
        )
        with _writing(tmp_path, settings) as service:
            victims = {
                "Spark's worker": kill_spark_worker,
                "Spark's executor": kill_spark_executor,
                **OWN,
            }
            kill_at_random(service, chance, victims, kills=number_of_kills(12))
            _check(service)
            # Spark's master lists the application of each driver. Living drivers (JVMs) may still be listed, killed
            # drivers may not.
            _wait_for_applications(cluster, len(having("java", family(service))))
        _wait_for_applications(cluster, 0)
        assert not still_alive(cluster.executors(), within_s=30)


def _wait_for_applications(cluster: SparkCluster, number: int) -> None:
    deadline = time.monotonic() + 30
    while len(cluster.state()["activeapps"]) > number and time.monotonic() < deadline:
        time.sleep(0.5)  # the cluster is another program
    assert len(cluster.state()["activeapps"]) <= number


def _check(service: Standalone) -> None:
    runs = check_ends(service)
    for name in ("rows", "more"):
        dataset: Any = pyarrow.dataset.dataset(service.folder / name, partitioning="hive")
        columns = dataset.to_table(columns=["token", "id"]).to_pydict()
        _check_rows(name, zip(columns["token"], columns["id"], strict=True), runs)


def _check_rows(name: str, rows: Any, runs: int) -> None:
    """Check that there are as many tokens as runs, and that each token has each row once."""
    found: dict[str, list[int]] = defaultdict(list)
    for token, number in rows:
        found[token].append(number)
    assert [sorted(numbers) for numbers in found.values()] == [list(range(ROWS))] * runs, name
