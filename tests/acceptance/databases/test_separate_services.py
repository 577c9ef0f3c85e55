"""With PostgreSQL each part is a process of its own, and announcements go between them."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.acceptance.commands import ENVIRONMENT, run_command
from tests.acceptance.records import Records

PARTS = ("triggerer", "scheduler", "dag-processor", "executor")
DAG = """
from triggerer import DAG, Asset, AssetWatcher, task
from watchers.directory import DirectoryFileDeleteTrigger

files = Asset("x-files", name="files", watchers=[
    AssetWatcher("inbox", DirectoryFileDeleteTrigger({inbox!r}, "go", poke_interval=0.2))])

with DAG("on_files", schedule=files):
    @task
    def read(triggering_asset_events, log):
        log.info("%s files", len(triggering_asset_events[files]))
    read()
"""


class Services:
    """One process for each part, on one database."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.inbox = folder / "inbox"
        self.inbox.mkdir()
        (folder / "dags").mkdir()
        (folder / "dags" / "files.py").write_text(DAG.format(inbox=str(self.inbox)))
        self.environment = ENVIRONMENT | {
            "TRIGGERER__CORE__HOME": str(folder),
            "TRIGGERER__EXECUTOR__LEASE_DURATION": "600",
            "TRIGGERER__CORE__SHUTDOWN_GRACE": "2",
            "TRIGGERER__DATABASE__URL": url,
        }
        self.records = Records(url)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, part: str) -> None:
        with (self.folder / f"{part}.log").open("ab") as log:
            self.processes[part] = subprocess.Popen(
                [sys.executable, "-m", "triggerer", part],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def json(self, *arguments: str) -> Any:
        done = run_command(*arguments, "--json", cwd=self.folder, environment=self.environment)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def until(self, query: str) -> None:
        """Wait until the query is true. Asking by a command would slow down the services."""
        try:
            self.records.wait_until(query)
        except TimeoutError as late:
            logs = "\n".join(
                f"{part}:\n{(self.folder / f'{part}.log').read_text()[-1500:]}"
                for part in self.processes
            )
            pytest.fail(f"{late}\n{logs}")

    def until_watching(self) -> None:
        self.until("SELECT count(*) FROM watcher WHERE state = 'running'")

    def until_successful(self) -> None:
        self.until("SELECT count(*) FROM dag_run WHERE state = 'success'")


@contextmanager
def running(folder: Path, url: str, parts: Sequence[str]) -> Iterator[Services]:
    started = Services(folder, url)
    for part in parts:
        started.start(part)
    try:
        yield started
    finally:
        for process in started.processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def services(tmp_path: Path, empty_postgres_url: str) -> Iterator[Services]:
    # All services start at once on an empty database, so they compete to create the tables.
    with running(tmp_path, empty_postgres_url, PARTS) as started:
        yield started


def test_a_file_becomes_an_event_a_run_and_a_result_across_four_processes(
    services: Services,
) -> None:
    services.until_watching()
    (watcher,) = services.json("watchers", "list")
    assert watcher["state"] == "running"
    (services.inbox / "go").touch()
    services.until_successful()
    (run,) = services.json("runs", "list")
    assert (run["dag_id"], run["state"]) == ("on_files", "success")
    (event,) = services.json("assets", "events")
    assert event["source_watcher"] == "inbox"
    assert run["asset_event_ids"] == [event["id"]]
    assert not (services.inbox / "go").exists()
    for part, process in services.processes.items():
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, (services.folder / f"{part}.log").read_text()
    (watcher,) = services.json("watchers", "list")
    assert (watcher["state"], watcher["owner"]) == ("waiting", None)


def test_a_scheduler_that_was_away_finds_what_came_meanwhile(services: Services) -> None:
    services.until_watching()
    services.processes["scheduler"].kill()
    services.processes["scheduler"].wait()
    (services.inbox / "go").touch()
    services.until("SELECT count(*) FROM queued_asset_event")
    (dag,) = services.json("dags", "list")
    assert dag["queued_events"] == 1
    assert services.json("runs", "list") == []
    services.start("scheduler")
    services.until_successful()


def test_streams_and_runs_are_held_as_long_as_their_own_setting_says(
    services: Services, empty_postgres_url: str
) -> None:
    services.until_watching()
    (services.inbox / "go").touch()
    services.until_successful()

    async def leases() -> dict[str, float]:
        connection = await asyncpg.connect(empty_postgres_url.replace("+asyncpg", ""))
        try:
            rows = await connection.fetch(
                "SELECT kind, extract(epoch FROM expires_at - now()) AS left_s FROM instance"
            )
        finally:
            await connection.close()
        return {row["kind"]: float(row["left_s"]) for row in rows}

    left_s = asyncio.run(leases())
    assert left_s["triggerer"] <= 15
    assert 300 < left_s["executor"] <= 600


def test_a_service_that_becomes_too_old_for_the_tables_signs_off_and_says_so(
    tmp_path: Path, empty_postgres_url: str
) -> None:
    async def demand_a_newer_release() -> None:
        connection = await asyncpg.connect(empty_postgres_url.replace("+asyncpg", ""))
        try:
            await connection.execute(
                "INSERT INTO schema_compat VALUES ('9998_after_x', '9998_after_x', '9.9', now())"
            )
        finally:
            await connection.close()

    with running(tmp_path, empty_postgres_url, ["scheduler"]) as services:
        services.until("SELECT count(*) FROM instance")
        asyncio.run(demand_a_newer_release())
        assert services.processes["scheduler"].wait(30) == 1
        log = (services.folder / "scheduler.log").read_text()
        assert "need a release with the migration 9998_after_x" in log
        assert "hint: install release 9.9, which upgraded the tables, or a newer one" in log
        assert "Traceback" not in log
        assert services.records.value("SELECT count(*) FROM instance") == 0
