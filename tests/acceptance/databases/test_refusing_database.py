"""A running service waits while its database refuses the login, a right, a table or every write."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.acceptance.instance import Instance, wait_until
from tests.acceptance.records import Records
from tests.services.databases.postgres import PostgresServer
from tests.services.notify_socket import NotifySocket
from tests.services.process import run_apart

ROLE = "triggerer_app"
OUTAGE_S = 8.0
"""Longer than the pauses between attempts, so that each part of the service meets the outage several times."""

DAG = """
import time
from pathlib import Path

from triggerer import DAG, Asset, AssetWatcher, task
from watchers.directory import DirectoryFileDeleteTrigger

files = Asset("x-files", name="files", watchers=[
    AssetWatcher("inbox", DirectoryFileDeleteTrigger({inbox!r}, "go", poke_interval=0.2))])

with DAG("on_files", schedule=files):
    @task
    def read():
        with Path({begun!r}).open("a") as begun:
            begun.write("begun\\n")
        while Path({hold!r}).exists():
            time.sleep(0.05)
    read()
"""


@dataclass
class Scene:
    """A `triggerer standalone`. Its database role is no superuser, so a test can revoke rights."""

    server: PostgresServer
    database: str
    folder: Path
    service: Instance = field(init=False)

    def __post_init__(self) -> None:
        dags = self.folder / "dags"
        dags.mkdir()
        self.inbox = self.folder / "inbox"
        self.inbox.mkdir()
        (dags / "files.py").write_text(
            DAG.format(inbox=str(self.inbox), hold=str(self.hold), begun=str(self.begun))
        )
        url = self.server.url(self.database).replace("postgres@", f"{ROLE}@")
        self.service = Instance(
            self.folder / "home", dags_folder=dags, database_url=url, bootstrap="127.0.0.1:1"
        )
        self.records = Records(self.server.url(self.database))

    @property
    def hold(self) -> Path:
        return self.folder / "hold"

    @property
    def begun(self) -> Path:
        return self.folder / "begun"

    def execute(self, *statements: str, cut: bool = True) -> None:
        """Execute statements as the superuser. With `cut`, then end the service's connections."""

        async def work() -> None:
            connection = await asyncpg.connect(
                self.server.url(self.database).replace("+asyncpg", "")
            )
            try:
                for statement in statements:
                    await connection.execute(statement)
                if cut:
                    await connection.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        f" WHERE usename = '{ROLE}'"
                    )
            finally:
                await connection.close()

        run_apart(work())

    def count(self, query: str) -> int:
        return int(self.records.rows(query)[0][0])

    def logged(self) -> list[dict[str, Any]]:
        lines = self.service.log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.fixture
def scene(durable_postgres_server: PostgresServer, tmp_path: Path) -> Iterator[Scene]:
    server = durable_postgres_server
    name = f"refusing_{time.time_ns()}"
    server.create_database(name)
    scene = Scene(server, name, tmp_path)
    scene.execute(
        f"DO $$ BEGIN CREATE ROLE {ROLE} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$",
        f"ALTER ROLE {ROLE} LOGIN CONNECTION LIMIT -1",
        f'GRANT ALL ON DATABASE "{name}" TO {ROLE}',
        f"GRANT ALL ON SCHEMA public TO {ROLE}",
    )
    try:
        yield scene
    finally:
        scene.service.kill()
        server.drop_database(name)


OUTAGES = {
    "the login is refused": ([f"ALTER ROLE {ROLE} NOLOGIN"], [f"ALTER ROLE {ROLE} LOGIN"]),
    "too many connections": (
        [f"ALTER ROLE {ROLE} CONNECTION LIMIT 0"],
        [f"ALTER ROLE {ROLE} CONNECTION LIMIT -1"],
    ),
    "rights are missing": (
        [
            f"ALTER TABLE {table} OWNER TO postgres"
            for table in ("dag_run", "asset_event", "instance")
        ],
        [
            f"ALTER TABLE {table} OWNER TO {ROLE}"
            for table in ("dag_run", "asset_event", "instance")
        ],
    ),
    "tables are missing": (
        [f"ALTER TABLE {table} RENAME TO {table}_away" for table in ("dag_run", "instance")],
        [f"ALTER TABLE {table}_away RENAME TO {table}" for table in ("dag_run", "instance")],
    ),
    "the server is read-only": (
        [f"ALTER ROLE {ROLE} SET default_transaction_read_only = on"],
        [f"ALTER ROLE {ROLE} RESET default_transaction_read_only"],
    ),
}


@contextmanager
def _outage(scene: Scene, begin: list[str], end: list[str]) -> Iterator[None]:
    scene.execute(*begin)
    try:
        yield
    finally:
        scene.execute(*end)


@pytest.mark.services
@pytest.mark.parametrize(
    "kind",
    [
        "the login is refused",
        "the server is read-only",
        *(
            pytest.param(kind, marks=pytest.mark.soak)
            for kind in ("too many connections", "rights are missing", "tables are missing")
        ),
    ],
)
def test_a_refusal_of_the_database_is_an_outage_for_a_running_service(
    scene: Scene, kind: str
) -> None:
    begin, end = OUTAGES[kind]
    service = scene.service
    service.start()
    wait_until(
        lambda: scene.count("SELECT count(*) FROM pg_tables WHERE tablename = 'watcher'") == 1
        and scene.count("SELECT count(*) FROM watcher WHERE state = 'running'") == 1,
        within_s=60, what="the watcher runs", of=service,
    )  # fmt: skip
    scene.hold.touch()
    (scene.inbox / "go").touch()
    wait_until(scene.begun.exists, within_s=60, what="the run has begun", of=service)
    with _outage(scene, begin, end):
        time.sleep(OUTAGE_S)
        assert service.is_running, service.tail()
    scene.hold.unlink()
    ended = "SELECT count(*) FROM dag_run WHERE state = 'success' AND attempt = 1"
    wait_until(lambda: scene.count(ended) == 1, within_s=30, what="the run ended", of=service)
    # The task ran only once, so the outage did not cut the run short.
    assert scene.begun.read_text().splitlines() == ["begun"]
    (scene.inbox / "go").touch()
    wait_until(lambda: scene.count(ended) == 2, within_s=30, what="events go on", of=service)
    assert service.stop() == 0, service.tail()


@pytest.fixture
def notify_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NotifySocket]:
    address = f"@triggerer-{time.time_ns()}"
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    with NotifySocket(address) as manager:
        yield manager


def _status(manager: NotifySocket) -> str:
    """Return the last status that the service manager received."""
    told = [line for datagram in manager.read() for line in datagram if line.startswith("STATUS=")]
    return told[-1]


class SqliteScene:
    """A standalone on a SQLite file in a folder of its own, which is 4 MB large."""

    def __init__(self, folder: Path, disk: Path) -> None:
        dags = folder / "dags"
        dags.mkdir()
        self.inbox = folder / "inbox"
        self.inbox.mkdir()
        self.hold, self.begun = folder / "hold", folder / "begun"
        (dags / "files.py").write_text(
            DAG.format(inbox=str(self.inbox), hold=str(self.hold), begun=str(self.begun))
        )
        self.disk = disk
        self.path = disk / "triggerer.db"
        url = f"sqlite:///{self.path}"
        self.service = Instance(
            folder / "home", dags_folder=dags, database_url=url, bootstrap="127.0.0.1:1"
        )
        self.records = Records(url)

    def count(self, query: str) -> int:
        return int(self.records.rows(query)[0][0])


@pytest.fixture
def sqlite_scene(tmp_path: Path) -> Iterator[SqliteScene]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "triggerer-test", disk],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("to fill a disk takes the right to mount one")
    scene = SqliteScene(tmp_path, disk)
    try:
        yield scene
    finally:
        scene.service.kill()
        assert scene.service.orphans() == []
        subprocess.run(["umount", "--lazy", disk], check=True)


@contextmanager
def _nothing_is_written(scene: SqliteScene) -> Iterator[None]:
    # Wait until the transactions in progress have ended.
    time.sleep(1)
    log = scene.path.with_name(scene.path.name + "-wal")
    before = log.read_bytes()
    yield
    assert log.read_bytes() == before, "it commits into a file that nobody will find"


@contextmanager
def _gone(scene: SqliteScene) -> Iterator[None]:
    aside = scene.path.with_suffix(".aside")
    scene.path.rename(aside)
    with _nothing_is_written(scene):
        yield
    assert not scene.path.exists(), "an empty database was made in its place"
    aside.rename(scene.path)


@contextmanager
def _replaced(scene: SqliteScene) -> Iterator[None]:
    aside = scene.path.with_suffix(".aside")
    scene.path.rename(aside)
    scene.path.write_bytes(b"")
    with _nothing_is_written(scene):
        yield
    assert scene.path.read_bytes() == b""
    aside.rename(scene.path)


@contextmanager
def _with_an_empty_log(scene: SqliteScene) -> Iterator[None]:
    """Empty the write-ahead log, and hold the write lock until the end of the block.

    The next write then needs disk space. Otherwise SQLite might reuse space in the log.
    """
    log = scene.path.with_name(f"{scene.path.name}-wal")
    with closing(sqlite3.connect(scene.path, isolation_level=None, timeout=30)) as connection:
        while True:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            connection.execute("BEGIN IMMEDIATE")
            if not log.stat().st_size:
                break
            connection.execute("ROLLBACK")
            time.sleep(0.01)  # a reader still uses the log, or another write came first
        yield
        connection.execute("ROLLBACK")


@contextmanager
def _full(scene: SqliteScene) -> Iterator[None]:
    ballast = scene.disk / "ballast"
    with (
        _with_an_empty_log(scene),
        ballast.open("wb", buffering=0) as file,
        suppress(OSError),
    ):
        for size in (65536, 512, 1):
            with suppress(OSError):
                while True:
                    file.write(b"x" * size)
    yield
    ballast.unlink()


@contextmanager
def _locked(scene: SqliteScene) -> Iterator[None]:
    other = sqlite3.connect(scene.path, isolation_level=None, timeout=30)
    other.execute("BEGIN IMMEDIATE")
    yield
    other.close()


@pytest.mark.parametrize(
    "outage",
    [
        _gone,
        _full,
        pytest.param(_replaced, marks=pytest.mark.soak),
        pytest.param(_locked, marks=pytest.mark.soak),
    ],
)
def test_a_sqlite_file_that_cannot_be_used_for_a_while_is_an_outage(
    sqlite_scene: SqliteScene,
    outage: Callable[[SqliteScene], AbstractContextManager[None]],
    notify_socket: NotifySocket,
) -> None:
    scene, service = sqlite_scene, sqlite_scene.service
    service.start()
    wait_until(
        lambda: "started" in service.tail(), within_s=60, what="the service starts", of=service
    )
    ended = "SELECT count(*) FROM dag_run WHERE state = 'success' AND attempt = 1"
    scene.hold.touch()
    (scene.inbox / "go").touch()
    wait_until(scene.begun.exists, within_s=60, what="the run has begun", of=service)
    with outage(scene):
        scene.hold.unlink()
        # The watcher takes the file now, but its event cannot be stored before the outage is over.
        (scene.inbox / "go").touch()
        time.sleep(OUTAGE_S)
        assert service.is_running, service.tail()
        assert "; the database has refused " in _status(notify_socket)
    wait_until(lambda: scene.count(ended) == 2, within_s=30, what="all runs", of=service)
    assert "; the database has refused " not in _status(notify_socket)
    assert scene.begun.read_text().splitlines() == ["begun", "begun"]
    assert scene.count("SELECT count(*) FROM asset_event") == 2
    assert '"the database is away"' in service.log.read_text()
    assert service.stop() == 0, service.tail()


@pytest.mark.services
def test_a_login_that_is_refused_at_the_start_is_waited_for_and_then_a_mistake(
    scene: Scene,
) -> None:
    service = scene.service
    text = service.config.read_text()
    service.config.write_text(text.replace("[database]", "[database]\nstart_timeout = 3"))
    scene.execute(f"ALTER ROLE {ROLE} NOLOGIN")
    service.start()
    wait_until(lambda: not service.is_running, within_s=30, what="the service gives up", of=service)
    said = service.tail()
    assert "waiting for the database" in said
    assert "check user and password in [database] url" in said
    assert "Traceback" not in said
    assert service.stop() == 1
    service.config.write_text(text)
    service.log.unlink()
    service.start()
    waits = "waiting for the database"
    wait_until(lambda: waits in service.tail(), within_s=30, what="the service waits", of=service)
    scene.execute(f"ALTER ROLE {ROLE} LOGIN")
    started = '"event":"started"'
    wait_until(
        lambda: started in service.tail(), within_s=30, what="the service starts", of=service
    )
    assert service.stop() == 0
