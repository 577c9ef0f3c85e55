"""Processes are killed at random moments of runs that write: each output is there once.

The processes are the executor, the worker and the driver; a Spark Connect server; and on a standalone cluster Spark's
own worker and Spark's own executor. Each run also ends once, and nothing of a former attempt works after the next
attempt has begun.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import asyncpg
import psutil
import pyarrow.dataset
import pytest

from tests.acceptance.standalone import Standalone, serving
from tests.services.availability import service as ready
from tests.services.postgres import PostgresServer
from tests.services.spark_cluster import SparkCluster, open_spark_cluster
from tests.services.spark_connect import open_connect_server
from tests.services.spark_jars import SparkJars

ROWS: Final = 40

DAGS = """
import json
import time
from pathlib import Path

from triggerer import DAG, Asset, task

FOLDER = Path(__file__).resolve().parent.parent
written = Asset("x-written", name="written")


def mark(*values):
    with (FOLDER / "marks").open("a") as marks:
        marks.write(json.dumps([*values, time.time()]) + "\\n")


with DAG("writes", schedule=None):

    @task(outlets=[written])
    def write(spark, output, dag_run):
        from pyspark.sql.functions import lit, udf

        run_id, attempt, folder = dag_run.run_id, dag_run.attempt, str(FOLDER)
        mark(run_id, attempt, "begins")

        def slow(number):
            with open(folder + "/marks", "a") as marks:
                marks.write(json.dumps([run_id, attempt, "works", time.time()]) + "\\n")
            time.sleep(0.05)
            return number

        rows = spark.range(0, 40, 1, 8).withColumn("id", udf(slow, "long")("id"))
        rows = rows.withColumn("token", lit(output.token))
        WRITES
        mark(run_id, attempt, "ends")

    write()
"""
PARQUET: Final = """\
        output.parquet(rows, str(FOLDER / "rows"))
        output.parquet(rows, str(FOLDER / "more"), partition_by="token")
"""
TABLES: Final = """\
        spark.sql("CREATE TABLE IF NOT EXISTS ice.db.t (id BIGINT, token STRING) USING iceberg")
        output.delta(rows, str(FOLDER / "delta"))
        output.iceberg(rows, "ice.db.t")
        output.jdbc(rows, "URL", "written", key=())
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
            name: {row["token"]: row["count"] for row in frame.groupBy("token").count().collect()}
            for name, frame in frames.items()
        }
        (FOLDER / "counts.json").write_text(json.dumps(found))

    count()
"""
Kill = Callable[[Standalone], bool]
"""Kills a process; returns False if there is none."""


def _dags(writes: str, more: str = "", url: str = "") -> str:
    return (DAGS.replace("        WRITES\n", writes) + more).replace("URL", url)


@contextmanager
def _writing(folder: Path, settings: str = "") -> Iterator[Standalone]:
    """Start a service whose DAG writes two Parquet outputs."""
    with serving(folder, _dags(PARQUET), count=1, settings=settings) as service:
        service.run("dags", "unpause", "writes")
        yield service


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Standalone]:
    with _writing(tmp_path) as service:
        yield service


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_run_that_is_killed_at_six_random_moments_writes_once(
    service: Standalone, seed: int
) -> None:
    _kill_and_repeat(service, random.Random(seed), OWN, moments=6)
    _check(service)


@pytest.mark.soak
@pytest.mark.timeout(5000)
def test_runs_that_are_killed_at_fifty_random_moments_write_once(
    service: Standalone, seed: int
) -> None:
    _kill_and_repeat(service, random.Random(seed), OWN, moments=50)
    _check(service)


@pytest.mark.soak
@pytest.mark.timeout(2000)
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
    try:
        with serving(tmp_path, _dags(TABLES, COUNTS, url), count=2, settings=settings) as service:
            for dag in ("writes", "counts"):
                service.run("dags", "unpause", dag)
            _kill_and_repeat(service, random.Random(seed), OWN, moments=12)
            _check_runs(service)
            service.run("dags", "trigger", "counts")
            assert [run["state"] for run in service.ended("counts")] == ["success"]
            runs = len(service.json("runs", "list", "--dag", "writes", "--limit", "0"))
    finally:
        postgres_server.drop_database(database)
    counts = json.loads((tmp_path / "counts.json").read_text())
    assert {name: sorted(one.values()) for name, one in counts.items()} == dict.fromkeys(
        ("delta", "iceberg", "jdbc"), [ROWS] * runs
    )


async def _create_table(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE TABLE written (id BIGINT, token TEXT)")
    await connection.close()


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_a_connect_server_that_is_killed_at_random_moments_has_written_once(
    tmp_path: Path, seed: int
) -> None:
    def kill_server(_: Standalone) -> bool:
        server.kill()
        server.start()
        return True

    with ready(open_connect_server()) as server:
        settings = f'[spark]\nremote = "{server.remote}"\n'
        with _writing(tmp_path, settings) as service:
            kills = {"server": kill_server, **{name: OWN[name] for name in ("executor", "worker")}}
            _kill_and_repeat(service, random.Random(seed), kills, moments=9)
            _check(service)


@pytest.mark.soak
@pytest.mark.timeout(2500)
def test_sparks_own_worker_and_executor_are_killed_at_random_moments(
    tmp_path: Path, seed: int
) -> None:
    def kill_spark_worker(_: Standalone) -> bool:
        cluster.daemon.kill()
        cluster.daemon.start()
        return True

    def kill_spark_executor(_: Standalone) -> bool:
        workers = (cluster.daemon, *cluster.others)
        return any(_kill_below(one.pid, "CoarseGrainedExecutorBackend") for one in workers)

    with ready(open_spark_cluster(workers=2, cores=1)) as cluster:
        settings = (
            f'[spark]\nmode = "classic"\nmaster = "{cluster.url}"\n'
            '[spark.conf]\n"spark.executor.memory" = "600m"\n'
        )
        with _writing(tmp_path, settings) as service:
            kills = {
                "Spark's worker": kill_spark_worker,
                "Spark's executor": kill_spark_executor,
                "executor": OWN["executor"],
                "driver": OWN["driver"],
            }
            _kill_and_repeat(service, random.Random(seed), kills, moments=12)
            _check(service)
        _wait_until_nothing_runs(cluster)


def _wait_until_nothing_runs(cluster: SparkCluster) -> None:
    deadline = time.monotonic() + 30
    while cluster.state()["activeapps"] and time.monotonic() < deadline:
        time.sleep(0.5)  # the cluster is another program
    assert cluster.state()["activeapps"] == []


def _kill_and_repeat(
    service: Standalone, chance: random.Random, kills: Mapping[str, Kill], *, moments: int
) -> None:
    _run_whole(service)
    done: Counter[str] = Counter()
    names = list(kills)
    while done.total() < moments:
        # Each kind has its share, and each run may be killed several times.
        victim = names[done.total() % len(names)]
        if _active(service) == 0:
            service.run("dags", "trigger", "writes")
        time.sleep(chance.uniform(0, 4))  # the moment of the kill
        if _active(service) and kills[victim](service):
            done[victim] += 1
        _retry_failed(service)
    _run_whole(service)
    print(dict(done))


def _run_whole(service: Standalone) -> None:
    """Let every run that is left succeed, and one run more."""
    service.run("dags", "trigger", "writes")
    deadline = time.monotonic() + 240
    while _active(service):
        assert time.monotonic() < deadline, service.log.read_text()[-3000:]
        time.sleep(0.2)  # the service is another process, and looked at by commands
        _retry_failed(service)


def _retry_failed(service: Standalone) -> None:
    for (run_id,) in service.records.rows("SELECT run_id FROM dag_run WHERE state = 'failed'"):
        done = service.run("runs", "retry", "writes", run_id)
        assert done.returncode == 0, done.stderr


def _active(service: Standalone) -> int:
    query = "SELECT count(*) FROM dag_run WHERE state IN ('queued', 'running', 'failed')"
    return int(service.records.rows(query)[0][0])


def _kill_service(service: Standalone) -> bool:
    assert service.process is not None
    service.process.kill()
    service.process.wait()
    # Its children notice by themselves.
    service.start()
    return True


def _kill_worker(service: Standalone) -> bool:
    assert service.process is not None
    return _kill_below(service.process.pid, "triggerer.worker.main")


def _kill_driver(service: Standalone) -> bool:
    assert service.process is not None
    return _kill_below(service.process.pid, "java")


OWN: Final[Mapping[str, Kill]] = {
    "executor": _kill_service,
    "worker": _kill_worker,
    "driver": _kill_driver,
}


def _kill_below(pid: int, sign: str) -> bool:
    """Kill a descendant of a process, by a word of its command; False if there is none."""
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            command = process.cmdline()
            if any(sign in part for part in command[:4]) or any(
                part.endswith(f".{sign}") for part in command
            ):
                process.kill()
                return True
    return False


def _check(service: Standalone) -> None:
    runs = _check_runs(service)
    for name in ("rows", "more"):
        dataset: Any = pyarrow.dataset.dataset(service.folder / name, partitioning="hive")
        tokens = Counter(dataset.to_table(columns=["token"])["token"].to_pylist())
        assert sorted(tokens.values()) == [ROWS] * runs, name


def _check_runs(service: Standalone) -> int:
    """Check that each run ended once and emitted one event, and return the number of runs."""
    runs = service.json("runs", "list", "--limit", "0")
    assert {run["state"] for run in runs} == {"success"}
    events = service.json("assets", "events", "--limit", "0")
    assert sorted(event["source_run_id"] for event in events) == sorted(r["run_id"] for r in runs)
    _check_marks(service.folder / "marks")
    return len(runs)


def _check_marks(path: Path) -> None:
    """No attempt works after the next has begun."""
    begins: dict[str, dict[int, float]] = defaultdict(dict)
    last: dict[tuple[str, int], float] = {}
    for line in path.read_text().splitlines():
        run_id, attempt, what, at = json.loads(line)
        if what == "begins":
            begins[run_id][attempt] = at
        last[run_id, attempt] = max(at, last.get((run_id, attempt), at))
    late = {
        (run_id, attempt): f"{at - next_at:.2f} s after attempt {following} began"
        for (run_id, attempt), at in last.items()
        for following, next_at in begins[run_id].items()
        if following > attempt and at > next_at
    }
    assert late == {}
