"""A database is restored from a backup, while the broker's positions are newer."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.acceptance.instance import wait_until
from tests.acceptance.watching import WatchingScene
from tests.services.brokers.kafka import KafkaServer
from tests.services.databases.postgres import find_postgres

_FAILING = (
    "SELECT count(*) = 2 FROM watcher"
    " WHERE state = 'failing' AND error LIKE '%triggerer db restored --backup-time 2%'"
)
_AT_REST = (
    "SELECT (SELECT count(*) FROM watcher_replay) = 0"
    " AND (SELECT count(*) FROM watcher WHERE state <> 'running') = 0"
)
_KEYS = (
    "SELECT a.name, e.idempotency_key FROM asset_event e JOIN asset a ON a.id = e.asset_id"
    " ORDER BY e.id"
)


class Scene(WatchingScene):
    """Two watchers of one topic, and a backup of their database."""

    def __init__(self, folder: Path, url: str, kafka: KafkaServer) -> None:
        super().__init__(
            folder,
            url,
            kafka,
            "restored",
            partitions=2,
            classes="",
            names={"one": "KafkaEventTrigger", "other": "KafkaEventTrigger"},
            settings="[triggerer]\nlease_duration = 4\n",
        )
        self._url = url
        self._backup = folder / "backup"

    @property
    def _file(self) -> Path:
        return Path(self._url.partition("///")[2])

    def _postgres(self, program: str, *arguments: object) -> None:
        url = self._url.replace("+asyncpg", "")
        command = [find_postgres() / program, *arguments, f"--dbname={url}"]
        subprocess.run(command, check=True, capture_output=True)

    def back_up(self) -> datetime:
        """Copy the database while the service runs, in the documented way. Return the time before the copy."""
        now = datetime.now(UTC)
        if self._url.startswith("sqlite"):
            with (
                closing(sqlite3.connect(self._file)) as source,
                closing(sqlite3.connect(self._backup)) as copy,
            ):
                source.backup(copy)
        else:
            self._postgres("pg_dump", "--clean", "--if-exists", f"--file={self._backup}")
        return now

    def restore(self) -> None:
        if self._url.startswith("sqlite"):
            for end in ("-wal", "-shm"):
                Path(f"{self._file}{end}").unlink(missing_ok=True)
            shutil.copy(self._backup, self._file)
        else:
            self._postgres("psql", "--quiet", "--set=ON_ERROR_STOP=1", f"--file={self._backup}")

    def wait_for_another_mark(self) -> None:
        """Wait until the owner has renewed the stream's mark, as it does at each heartbeat."""
        before = self.records.value("SELECT max(marked_at) FROM stream")
        self.records.wait_until(f"SELECT max(marked_at) > '{before}' FROM stream")

    def offsets(self) -> dict[str, dict[str, list[int]]]:
        """Return the offsets of the events, by asset and partition, in the order of storing."""
        found: dict[str, dict[str, list[int]]] = {}
        for name, key in self.records.rows(_KEYS):
            lane, _, offset = key.rpartition("/")
            found.setdefault(name, {}).setdefault(lane, []).append(int(offset))
        return found


@pytest.fixture
def scene(tmp_path: Path, empty_store_url: str, kafka_server: KafkaServer) -> Iterator[Scene]:
    scene = Scene(tmp_path, empty_store_url, kafka_server)
    yield scene
    scene.kill()


def rehearse(scene: Scene, half: int) -> None:
    """Back up after half of the messages, and restore after all of them."""
    scene.start()
    scene.produce(half)
    scene.until_counted(one=half, other=half)
    scene.records.wait_until("SELECT count(*) = 1 FROM stream WHERE marked_at IS NOT NULL")
    backup_time = scene.back_up()
    scene.wait_for_another_mark()
    scene.produce(half)
    scene.until_counted(one=2 * half, other=2 * half)
    assert scene.instance.stop() == 0
    scene.restore()
    assert scene.counts() == {"one": (half, half), "other": (half, half)}
    # Publish more messages while no service runs. They must come after the messages that are read again.
    scene.produce(10)

    # Before `triggerer db restored`, the stream is not read. The watchers' errors name this command.
    scene.instance.start()
    wait_until(
        lambda: scene.records.holds(_FAILING),
        within_s=60,
        what="both watchers fail and name the command",
        of=scene.instance,
    )
    assert scene.counts() == {"one": (half, half), "other": (half, half)}
    assert scene.instance.stop() == 0

    answers = [
        json.loads(
            scene.instance.cli("db", "restored", "--backup-time", backup_time.isoformat(), "--json")
        )
        for _ in range(2)
    ]
    assert answers[0] == answers[1], "a repeated command says and does the same"
    watchers = answers[0]["watchers"]
    assert [(one["asset_name"], one["source"]) for one in watchers] == [
        ("x-test://one", "log"),
        ("x-test://other", "log"),
    ]
    assert scene.records.rows("SELECT count(*) FROM watcher_replay") == [(2,)]

    scene.instance.start()
    total = 2 * half + 10
    scene.until_counted(one=total, other=total)
    wait_until(
        lambda: scene.records.holds(_AT_REST),
        within_s=60,
        what="both watchers run, and no request is left",
        of=scene.instance,
    )
    for lanes in scene.offsets().values():
        for lane, offsets in lanes.items():
            assert offsets == sorted(offsets), f"{lane} was read out of order"
    # At the next start, the service accepts the broker's positions: all watchers run.
    assert scene.instance.stop() == 0
    scene.start()
    scene.produce(10)
    scene.until_counted(one=total + 10, other=total + 10)


@pytest.mark.soak
def test_each_of_100_000_messages_has_its_event_once_after_a_restore(scene: Scene) -> None:
    rehearse(scene, 50_000)
