"""DAG runs that use a real Spark Connect server: a run's attempts never work at the same time.

This holds even if the service, the worker or the server is killed.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.acceptance.standalone import Standalone, serving
from tests.services.availability import skip_or_fail
from tests.services.clusters.spark_connect import ConnectServer, open_connect_server
from tests.services.process import ServiceUnavailable

pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]

# The task records its steps as empty files (marks). A mark's name has the step, the attempt and the time. The mark
# `begin` is written before the attempt uses Spark.
_DAG = """
import os, time, uuid
from triggerer import DAG, task

def mark(folder, attempt, what):
    open(os.path.join(folder, f"{what} {attempt} {time.time():.6f} {uuid.uuid4().hex}"), "w").close()

with DAG("long"):
    @task
    def work(spark, dag_run, params):
        from pyspark.sql.functions import udf
        folder, attempt = params["folder"], dag_run.attempt
        mark(folder, attempt, "begin")

        @udf("int")
        def step(n):
            for _ in range(60 if attempt == 1 else 1):
                name = f"mark {attempt} {time.time():.6f} {uuid.uuid4().hex}"
                open(os.path.join(folder, name), "w").close()
                time.sleep(0.2)
            return n

        spark.range(0, 40 if attempt == 1 else 2, 1, 2).select(step("id").alias("n")).collect()
    work()
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ConnectServer]:
    try:
        with open_connect_server() as running:
            yield running
    except ServiceUnavailable as absent:
        skip_or_fail(str(absent))


class Scene:
    def __init__(self, service: Standalone, marks: Path) -> None:
        self.service = service
        self.marks = marks

    def trigger(self) -> None:
        params = json.dumps({"folder": str(self.marks)})
        self.service.run("dags", "trigger", "long", "--params", params)

    def times(self, what: str, attempt: int) -> list[float]:
        found = [path.name.split(" ") for path in self.marks.iterdir()]
        return [
            float(at) for kind, number, at, _ in found if (kind, number) == (what, str(attempt))
        ]

    def until_marks(self, attempt: int, *, more_than: int = 3) -> None:
        _until(lambda: len(self.times("mark", attempt)) > more_than)

    def show(self) -> Any:
        return self.service.json("runs", "show", "long", "--last")

    def states(self) -> list[tuple[int, str]]:
        return [(one["number"], one["state"]) for one in self.show()["attempts"]]

    def until_state(self, state: str) -> None:
        _until(lambda: self.show()["state"] == state)

    def waits_in_the_queue_for(self, server: ConnectServer) -> bool:
        run = self.show()
        reason = f"which may still work: the Spark Connect server {server.remote} does not answer"
        waits = run["waiting_for"] == f"the end of attempt 1, {reason}"
        return run["state"] == "queued" and waits

    def kill_service(self) -> None:
        assert self.service.process is not None
        self.service.process.kill()
        self.service.process.wait()


@pytest.fixture
def scene(server: ConnectServer, tmp_path: Path) -> Iterator[Scene]:
    marks = tmp_path / "marks"
    marks.mkdir()
    home = tmp_path / "home"
    home.mkdir()
    spark = f'[spark]\nremote = "{server.remote}"\ncluster_patience = 2\n'
    with serving(home, _DAG, count=1, settings=spark) as service:
        yield Scene(service, marks)


@pytest.mark.soak
def test_the_next_attempt_begins_only_after_the_last_mark_of_one_whose_service_was_killed(
    scene: Scene,
) -> None:
    scene.trigger()
    scene.until_marks(1)
    scene.kill_service()
    killed_at = time.time()
    _until(lambda: max(scene.times("mark", 1)) > killed_at + 1)
    scene.service.start()
    scene.until_state("success")
    (began,) = scene.times("begin", 2)
    assert max(scene.times("mark", 1)) < began
    assert scene.states() == [(1, "killed"), (2, "success")]


@pytest.mark.soak
def test_what_a_killed_worker_leaves_on_the_server_is_stopped_without_another_attempt(
    scene: Scene,
) -> None:
    scene.trigger()
    scene.until_marks(1)
    assert scene.service.process is not None
    for child in psutil.Process(scene.service.process.pid).children(recursive=True):
        if "triggerer.worker.main" in " ".join(child.cmdline()):
            child.send_signal(signal.SIGKILL)
    scene.until_state("failed")
    _until(lambda: scene.states() == [(1, "killed")])
    left = len(scene.times("mark", 1))
    time.sleep(2)  # no event shows that no further mark comes
    assert len(scene.times("mark", 1)) == left


@pytest.mark.soak
def test_a_run_waits_while_the_server_is_away_and_goes_on_at_the_operators_word(
    scene: Scene, server: ConnectServer
) -> None:
    scene.trigger()
    scene.until_marks(1)
    scene.kill_service()
    server.kill()
    try:
        scene.service.start()
        _until(lambda: scene.waits_in_the_queue_for(server))
        # A second attempt may be listed already, but it must not begin.
        assert scene.states()[0] == (1, "unknown")
        assert scene.times("begin", 2) == []
        assert scene.service.run("runs", "resolve", "long", "--last").returncode == 2
    finally:
        server.start()
    resolved = scene.service.run("runs", "resolve", "long", "--last", "--lost")
    # The server is back, so the run may have continued before the command found its attempt.
    assert "attempt 1 is lost" in resolved.stdout or "no attempt of the run" in resolved.stderr
    scene.until_state("success")
    (first, state), second = scene.states()
    assert (first, state in {"lost", "killed"}, second) == (1, True, (2, "success"))


def _until(condition: Any, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)  # neither the store nor the marks notify this process
