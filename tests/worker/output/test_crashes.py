"""A task's process and its JVM are killed at planted points or random moments. Each output is still written once."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.services.clusters.spark_jars import SparkJars
from tests.services.databases.postgres import PostgresServer
from tests.services.storage.gcs import Gcs
from tests.services.storage.s3 import S3
from tests.worker.output.crashing import POINTS, ROWS

pytestmark = pytest.mark.timeout(1800)

KINDS = ("parquet", "delta", "iceberg", "jdbc")


class Scene:
    """Attempts of tasks that write to the targets of one folder and one database, or to a folder of an object store."""

    def __init__(
        self, folder: Path, url: str, conf: dict[str, str], lake: str | None = None
    ) -> None:
        self._given = {"folder": str(folder), "url": url, "conf": conf, "lake": lake}
        self._folder = folder

    def start(
        self, token: str, point: str | None = None, *, count: bool = False
    ) -> subprocess.Popen[str]:
        given = json.dumps({**self._given, "token": token, "point": point, "count": count})
        with (self._folder / "errors").open("a") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.worker.output.crashing", given],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def attempt(self, token: str, point: str | None = None, *, count: bool = False) -> list[str]:
        """Run an attempt, and return the lines that it printed.

        An attempt that was killed has not printed the line `done`.
        """
        with self.start(token, point, count=count) as process:
            shown, _ = process.communicate(timeout=300)
        assert process.returncode in (0, -signal.SIGKILL), (self._folder / "errors").read_text()
        return shown.splitlines()


@pytest.fixture
def scene(tmp_path: Path, spark_jars: SparkJars, postgres_server: PostgresServer) -> Any:
    conf = spark_jars.conf(("delta", "iceberg", "jdbc"), tmp_path / "ice")
    conf |= {"spark.sql.shuffle.partitions": "2", "spark.databricks.delta.snapshotPartitions": "2"}
    database = f"crashing{os.getpid()}"
    postgres_server.create_database(database)
    url = f"jdbc:postgresql://127.0.0.1:{postgres_server.port}/{database}?user=postgres"
    yield Scene(tmp_path, url, conf)
    postgres_server.drop_database(database)


def _once(*tokens: str) -> dict[str, dict[str, int]]:
    return {kind: dict.fromkeys(tokens, ROWS) for kind in KINDS}


@pytest.mark.soak
def test_a_task_that_dies_in_the_middle_of_a_commit_writes_once(scene: Scene) -> None:
    assert scene.attempt("task", "parquet: after the first move") == ["open"]
    *outcomes, counts = scene.attempt("task", count=True)
    written = [f"{kind} written" for kind in KINDS[1:]]
    assert outcomes == ["open", "parquet was_there", *written, "done"]
    assert json.loads(counts) == _once("task")


@pytest.mark.soak
def test_a_task_that_dies_at_every_planted_point_writes_once(scene: Scene) -> None:
    for point in POINTS:
        assert "done" not in scene.attempt("task", point), f"nothing was killed {point}"
    assert scene.attempt("task")[-1] == "done"
    *repeated, counts = scene.attempt("task", count=True)
    assert repeated == ["open", *(f"{kind} was_there" for kind in KINDS), "done"]
    assert json.loads(counts) == _once("task")


@pytest.mark.soak
def test_a_task_that_dies_at_every_planted_point_writes_once_to_an_object_store(
    tmp_path: Path, object_store: S3 | Gcs
) -> None:
    scene = Scene(tmp_path, "", object_store.conf(), f"{object_store.root}/a table")
    for point in POINTS:
        if point.startswith("parquet"):
            assert "done" not in scene.attempt("task", point), f"nothing was killed {point}"
    *repeated, counts = scene.attempt("task", count=True)
    assert repeated == ["open", "parquet was_there", "done"]
    assert json.loads(counts) == {"parquet": {"task": ROWS}}
    assert [key for key in object_store.list_keys() if "table/_triggerer" in key] == [
        "a table/_triggerer/written/task.json"
    ]


@pytest.mark.soak
@pytest.mark.timeout(5400)
def test_tasks_that_are_killed_at_random_moments_write_once(scene: Scene) -> None:
    tokens = _kill_at_random(scene, 50)
    *_, counts = scene.attempt("", count=True)
    assert json.loads(counts) == _once(*tokens)


@pytest.mark.soak
@pytest.mark.timeout(5400)
def test_tasks_that_are_killed_at_random_moments_write_once_to_an_object_store(
    tmp_path: Path, object_store: S3 | Gcs
) -> None:
    scene = Scene(tmp_path, "", object_store.conf(), f"{object_store.root}/killed")
    tokens = _kill_at_random(scene, 10)
    *_, counts = scene.attempt("", count=True)
    assert json.loads(counts) == {"parquet": dict.fromkeys(tokens, ROWS)}


def _kill_at_random(scene: Scene, default: int) -> list[str]:
    """Kill attempts at random moments, and repeat each task until it is done. Return the tasks' tokens."""
    seed = int(os.environ.get("TRIGGERER_SEED", time.time_ns() % 1_000_000))
    print(f"TRIGGERER_SEED={seed}")
    chance = random.Random(seed)
    kills, tokens = 0, list[str]()
    wanted = int(os.environ.get("TRIGGERER_KILLS", default))
    while kills < wanted:
        token = f"task{len(tokens)}"
        tokens.append(token)
        is_done = False
        while not is_done:
            with scene.start(token) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == "open\n"
                try:
                    process.wait(timeout=chance.uniform(0, 12) if kills < wanted else None)
                except subprocess.TimeoutExpired:
                    _kill(process.pid)
                    kills += 1
                is_done = "done\n" in process.stdout.readlines()
    return tokens


def _kill(pid: int) -> None:
    """Kill a process with its JVM and Spark's Python workers."""
    process = psutil.Process(pid)
    for one in [*process.children(recursive=True), process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
