"""Each writer writes once over Spark Connect, with a server whose Python does not find triggerer."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest

from tests.services.clusters.spark_jars import SparkJars
from tests.services.databases.postgres import PostgresServer
from tests.services.process import free_ports
from triggerer.worker.spark.sessions.classic import find_installation
from triggerer.worker.spark.sessions.reachability import Endpoint, is_reachable

pytestmark = [pytest.mark.timeout(300), pytest.mark.soak]

CLIENT = """
    import sys
    from pathlib import Path
    from pyspark.sql import SparkSession
    from triggerer.errors import OutputRefused
    from triggerer.worker.output import Output
    from triggerer.worker.output.jdbc import Connection

    port, folder, jdbc = sys.argv[1:]
    spark = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").create()
    spark.sql("CREATE TABLE ice.db.t (id BIGINT) USING iceberg")
    Connection(spark, jdbc, None).execute("CREATE TABLE over_connect (id BIGINT PRIMARY KEY)")
    rows, path = spark.range(10), f"{folder}/a folder/rows"

    def write(current=lambda: True):
        output = Output("f" * 32, current)
        return [
            output.parquet(rows.withColumn("day", rows.id % 2), path, partition_by="day"),
            output.parquet(rows, f"file://{folder}/a%20folder/rows/day=2"),
            output.delta(rows, f"{folder}/delta"),
            output.iceberg(rows, "ice.db.t"),
            output.jdbc(rows, jdbc, "over_connect", key="id"),
        ]

    print(write())
    print(write())
    print(
        spark.read.parquet(path).groupBy("day").count().orderBy("day").collect(),
        spark.read.format("delta").load(f"{folder}/delta").count(),
        spark.table("ice.db.t").count(),
        len(Connection(spark, jdbc, None).query("SELECT * FROM over_connect")),
    )
    answers = iter([True, False])
    try:
        Output("0" * 32, lambda: next(answers)).parquet(rows, path)
    except OutputRefused as refused:
        print(refused.message)
    print(sorted(one.name for one in Path(path, "_triggerer").glob("*/*")))
    spark.stop()
"""


@contextmanager
def _server(home: Path, conf: dict[str, str]) -> Iterator[int]:
    found = find_installation(home)
    (port,) = free_ports(1)
    environment = {
        "JAVA_HOME": str(found.java_home),
        "SPARK_HOME": str(found.spark_home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    conf = conf | {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    options = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    command = [found.spark_home / "bin" / "spark-submit", "--class", server, "--master", "local[2]"]
    with (home / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *options, "spark-internal"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # In this folder, the server's Python workers do not find this project.
            cwd=home,
            env={**os.environ, **environment, "PYTHONPATH": ""},
        )
    try:
        while not is_reachable(Endpoint("127.0.0.1", port)):
            assert process.poll() is None
            time.sleep(0.2)  # the server sends no notice when it listens
        yield port
    finally:
        process.kill()
        process.wait()


def test_every_writer_writes_once_over_connect(
    tmp_path: Path, spark_jars: SparkJars, postgres_server: PostgresServer
) -> None:
    jdbc = f"jdbc:postgresql://127.0.0.1:{postgres_server.port}/postgres?user=postgres"
    conf = spark_jars.conf(("delta", "iceberg", "jdbc"), tmp_path / "ice")
    with _server(tmp_path, conf) as port:
        done = subprocess.run(
            [sys.executable, "-c", dedent(CLIENT), str(port), str(tmp_path), jdbc],
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    written, repeated, counts, refused, left = done.stdout.splitlines()
    assert written == str(["written"] * 5)
    assert repeated == str(["was_there"] * 5)
    days = ", ".join(f"Row(day={day}, count={n})" for day, n in ((0, 5), (1, 5), (2, 10)))
    assert counts == f"[{days}] 10 10 10"
    assert "no longer the current one" in refused
    (draft, commit) = eval(left)
    assert draft.startswith(f"{'0' * 32}.")
    assert commit == f"{'f' * 32}.json"
