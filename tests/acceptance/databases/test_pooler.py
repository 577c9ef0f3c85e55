"""Services work through a pooler in session mode. They refuse to start on a pooler in transaction mode."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.acceptance.instance import Instance, wait_until
from tests.acceptance.records import Records
from tests.services.availability import service
from tests.services.databases.pgbouncer import PgBouncer, open_pgbouncer
from tests.services.databases.postgres import PostgresServer

DAG = """
from triggerer import DAG, Asset, AssetWatcher, task
from watchers.directory import DirectoryFileDeleteTrigger

files = Asset("x-files", name="files", watchers=[
    AssetWatcher("inbox", DirectoryFileDeleteTrigger({inbox!r}, "go", poke_interval=0.2))])

with DAG("on_files", schedule=files):
    @task
    def read():
        pass
    read()
"""

Bouncing = Callable[[str], PgBouncer]


@pytest.fixture
def bouncing(postgres_server: PostgresServer) -> Iterator[Bouncing]:
    with ExitStack() as stack:
        yield lambda mode: stack.enter_context(service(open_pgbouncer(postgres_server, mode=mode)))


def _instance(folder: Path, name: str, url: str) -> Instance:
    dags, inbox = folder / "dags", folder / "inbox"
    dags.mkdir(exist_ok=True)
    inbox.mkdir(exist_ok=True)
    (dags / "files.py").write_text(DAG.format(inbox=str(inbox)))
    return Instance(folder / name, dags_folder=dags, database_url=url, bootstrap="127.0.0.1:1")


@pytest.mark.soak
def test_two_services_work_through_a_pooler_in_session_mode(
    bouncing: Bouncing, empty_postgres_url: str, tmp_path: Path
) -> None:
    url = bouncing("session").url(empty_postgres_url.rpartition("/")[2])
    instances = [_instance(tmp_path, name, url) for name in ("one", "other")]
    records = Records(empty_postgres_url)
    try:
        for instance in instances:
            instance.start()
        records.wait_until("SELECT count(*) = 1 FROM watcher WHERE state = 'running'")
        for runs in range(1, 4):
            (tmp_path / "inbox" / "go").touch()
            records.wait_until(
                f"SELECT count(*) = {runs} FROM dag_run WHERE state = 'success'", within_s=30
            )
        for instance in instances:
            assert instance.stop() == 0, instance.tail()
            assert _troubles(instance) == []
    finally:
        for instance in instances:
            instance.kill()


def _troubles(instance: Instance) -> list[str]:
    lines = [line for line in instance.log.read_text().splitlines() if line.startswith("{")]
    said = [json.loads(line) for line in lines]
    return [line["event"] for line in said if line["level"] in {"warning", "error"}]


@pytest.mark.soak
def test_a_pooler_in_transaction_mode_is_refused_at_the_start(
    bouncing: Bouncing, empty_postgres_url: str, tmp_path: Path
) -> None:
    url = bouncing("transaction").url(empty_postgres_url.rpartition("/")[2])
    instance = _instance(tmp_path, "one", url)
    instance.start()
    wait_until(
        lambda: not instance.is_running, within_s=60, what="the service gives up", of=instance
    )
    assert instance.stop() == 1
    said = instance.tail()
    assert "delivers no announcements" in said
    assert "set it to session mode, or connect directly" in said
    assert "Traceback" not in said
    assert (
        Records(empty_postgres_url).value(
            "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
        )
        == 0
    )
