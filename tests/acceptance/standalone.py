"""A standalone on SQLite, and the commands beside it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.acceptance.commands import json_of, run_command, start_service
from tests.acceptance.forked_commands import ForkedService
from tests.acceptance.records import Records
from tests.services.process import still_alive


class Standalone:
    """The service and its folder."""

    def __init__(self, folder: Path, dags: str, settings: str = "") -> None:
        self.folder = folder
        self.config = folder / "triggerer.toml"
        self.config.write_text(
            '[core]\nhome = "."\ndags_folder = "dags"\nshutdown_grace = 2\n' + settings
        )
        (folder / "dags").mkdir()
        (folder / "dags" / "orders.py").write_text(dags)
        self.log = folder / "service.log"
        self.records = Records(f"sqlite:///{folder / 'triggerer.db'}")
        self.process: ForkedService | subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = start_service("standalone", cwd=self.folder, log=self.log)

    def stop(self, signum: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(signum)
        return self.process.wait(30)

    @staticmethod
    def command(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "triggerer", *arguments]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_command(*arguments, cwd=self.folder)

    def json(self, *arguments: str) -> Any:
        return json_of(self.run(*arguments, "--json"))

    def until(self, query: str) -> None:
        """Wait until the query is true. Asking by a command would slow down the service."""
        try:
            self.records.wait_until(query)
        except TimeoutError as late:
            pytest.fail(f"{late}; the log:\n{self.log.read_text()[-4000:]}")

    def until_running(self) -> None:
        self.until("SELECT count(*) FROM dag_run WHERE state = 'running'")

    def ended(self, dag_id: str) -> Any:
        ended = "state NOT IN ('queued', 'running')"
        self.until(f"SELECT count(*) FROM dag_run WHERE dag_id = '{dag_id}' AND {ended}")
        runs = self.json("runs", "list", "--dag", dag_id)
        return [run for run in runs if run["state"] not in {"queued", "running"}]


@contextmanager
def serving(folder: Path, dags: str, *, count: int, settings: str = "") -> Iterator[Standalone]:
    """Start a standalone with this number of DAGs. Kill it at the end; no process may outlive it."""
    service = Standalone(folder, dags, settings)
    service.start()
    assert service.process is not None
    try:
        service.until(f"SELECT count(*) = {count} FROM dag")
        yield service
    finally:
        # A test may have started the service again.
        is_running = service.process.poll() is None
        children = (
            psutil.Process(service.process.pid).children(recursive=True) if is_running else []
        )
        service.process.kill()
        service.process.wait()
        assert not still_alive(children, within_s=15), "children outlived the service"
