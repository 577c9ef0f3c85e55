"""The executor, the worker and the driver are killed at random moments of runs that write: each output is there once.

Each run also ends once, and nothing of a former attempt works after the next attempt has begun.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import pyarrow.dataset
import pytest

from tests.acceptance.standalone import Standalone, serving

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
        output.parquet(rows.withColumn("token", lit(output.token)), str(FOLDER / "rows"))
        output.parquet(rows.withColumn("token", lit(output.token)), str(FOLDER / "more"), partition_by="token")
        mark(run_id, attempt, "ends")

    write()
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Standalone]:
    with serving(tmp_path, DAGS, count=1) as service:
        service.run("dags", "unpause", "writes")
        yield service


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_run_that_is_killed_at_six_random_moments_writes_once(
    service: Standalone, seed: int
) -> None:
    _kill_and_repeat(service, random.Random(seed), moments=6)


@pytest.mark.soak
@pytest.mark.timeout(5000)
def test_runs_that_are_killed_at_fifty_random_moments_write_once(
    service: Standalone, seed: int
) -> None:
    _kill_and_repeat(service, random.Random(seed), moments=50)


def _kill_and_repeat(service: Standalone, chance: random.Random, *, moments: int) -> None:
    _run_whole(service)
    kills: Counter[str] = Counter()
    while kills.total() < moments:
        # Each kind has its share, and each run may be killed several times.
        victim = ("executor", "worker", "driver")[kills.total() % 3]
        if _active(service) == 0:
            service.run("dags", "trigger", "writes")
        time.sleep(chance.uniform(0, 4))  # the moment of the kill
        if _active(service) and _kill(service, victim):
            kills[victim] += 1
        _retry_failed(service)
    _run_whole(service)
    print(dict(kills))
    _check(service)


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


def _kill(service: Standalone, victim: str) -> bool:
    """Kill a process of the service; False if there is none."""
    assert service.process is not None
    if victim == "executor":
        service.process.kill()
        service.process.wait()
        # Its children notice by themselves.
        service.start()
        return True
    sign = "triggerer.worker.main" if victim == "worker" else "java"
    for process in psutil.Process(service.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if any(sign in part for part in process.cmdline()[:4]):
                process.kill()
                return True
    return False


def _check(service: Standalone) -> None:
    runs = service.json("runs", "list", "--limit", "0")
    assert {run["state"] for run in runs} == {"success"}
    for name in ("rows", "more"):
        dataset: Any = pyarrow.dataset.dataset(service.folder / name, partitioning="hive")
        tokens = Counter(dataset.to_table(columns=["token"])["token"].to_pylist())
        assert sorted(tokens.values()) == [ROWS] * len(runs), name
    events = service.json("assets", "events", "--limit", "0")
    assert sorted(event["source_run_id"] for event in events) == sorted(r["run_id"] for r in runs)
    _check_marks(service.folder / "marks")


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
