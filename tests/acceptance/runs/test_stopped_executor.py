"""Two executors on PostgreSQL. One of them is suspended for longer than its lease, and the other repeats its runs.

The two never execute a run at the same time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

import psutil
import pytest

from tests.acceptance.records import Records

SERVICES = ("scheduler", "dag-processor", "executor", "executor")
LEASE_S = 6
# The first attempt would take five minutes, a later one takes three seconds.
DAG = """
import os
import time
from pathlib import Path
from triggerer import DAG, task

LOG = Path({log!r})

with DAG("writes"):
    @task
    def write():
        lasts_s = 3 if LOG.exists() else 300
        ends_at = time.monotonic() + lasts_s
        while time.monotonic() < ends_at:
            with LOG.open("a") as file:
                file.write(f"{{os.getpid()}}\\n")
            time.sleep(0.05)
    write()
"""


class Deployment:
    """One process for each service, on one database."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.written = folder / "written"
        (folder / "dags").mkdir()
        (folder / "dags" / "writes.py").write_text(DAG.format(log=str(self.written)))
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("TRIGGERER")}
        self.environment |= {
            "TRIGGERER__CORE__HOME": str(folder),
            "TRIGGERER__CORE__SHUTDOWN_GRACE": "2",
            "TRIGGERER__DATABASE__URL": url,
            "TRIGGERER__EXECUTOR__LEASE_DURATION": str(LEASE_S),
        }
        self.records = Records(url)
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "triggerer", *arguments],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    @property
    def log(self) -> Path:
        return self.folder / "services.log"

    def lines(self) -> list[int]:
        """The process id of each write."""
        return (
            [int(pid) for pid in self.written.read_text().split()] if self.written.exists() else []
        )

    def writers(self) -> list[int]:
        """Return the processes that have written, in order. A process that writes again after another occurs again."""
        return [pid for pid, _ in groupby(self.lines())]

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            time.sleep(0.02)


@pytest.fixture
def deployment(tmp_path: Path, empty_postgres_url: str) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path, empty_postgres_url)
    for service in SERVICES:
        deployment.start(service)
    try:
        yield deployment
    finally:
        for process in deployment.processes:
            process.kill()
            process.wait()


@pytest.mark.rule("15: executors and workers too stop by their own clock, before others may begin")
def test_a_run_of_an_executor_that_is_stopped_is_never_executed_by_two(
    deployment: Deployment,
) -> None:
    records = deployment.records
    records.wait_until("SELECT count(*) FROM dag WHERE dag_id = 'writes'")
    records.wait_until("SELECT count(*) = 2 FROM instance WHERE kind = 'executor'")
    assert deployment.start("dags", "trigger", "writes").wait(60) == 0
    deployment.until(lambda: bool(deployment.lines()))
    first = deployment.lines()[0]
    # The executor's worker has forked the run's process.
    worker = psutil.Process(first).parent()
    assert worker is not None
    executor = worker.parent()
    assert executor is not None
    assert executor.pid in {process.pid for process in deployment.processes}
    executor.suspend()
    # Resume the executor once the second attempt has written 20 lines.
    deployment.until(lambda: sum(pid != first for pid in deployment.lines()) >= 20)
    executor.resume()
    records.wait_until("SELECT state = 'success' FROM dag_run")
    assert records.rows("SELECT attempt, state FROM dag_run") == [(2, "success")]
    writers = deployment.writers()
    assert (len(writers), writers[0]) == (2, first)
    for process in deployment.processes:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, deployment.log.read_text()[-3000:]
