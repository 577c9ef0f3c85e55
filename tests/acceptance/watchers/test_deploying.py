"""DAG files that take long to import, and files that are replaced: no message is missed."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.commands import output_of, run_command
from tests.acceptance.instance import Instance, wait_until
from tests.acceptance.records import Records
from tests.services.brokers.kafka import KafkaServer

WATCHED = """
from triggerer import DAG, Asset, AssetWatcher, task
from watchers.kafka import KafkaEventTrigger

{before}
asset = Asset("x-test://{name}", watchers=[AssetWatcher("w", KafkaEventTrigger("{topic}"))])

with DAG("on_{name}", schedule=asset):

    @task
    def count(triggering_asset_events):
        return len(triggering_asset_events)

    count()
"""
SLOW = "import time\ntime.sleep({seconds})\n"
REASON = "the DAGs folder has not been read yet"
NUMBERS = (
    "SELECT a.name, count(*), count(DISTINCT e.idempotency_key) FROM asset_event e"
    " JOIN asset a ON a.id = e.asset_id GROUP BY a.name"
)


class Deployment:
    """A DAGs folder, and the database of the services that read it."""

    def __init__(self, folder: Path, url: str, bootstrap: str) -> None:
        self.dags = folder / "dags"
        self.dags.mkdir()
        self.records = Records(url)
        self.instance = Instance(
            folder / "home", dags_folder=self.dags, database_url=url, bootstrap=bootstrap
        )
        self.parts: list[subprocess.Popen[bytes]] = []

    def watch(self, name: str, topic: str, *, slow_s: float = 0) -> Path:
        """Write a DAG file with a watcher of the topic, in one step."""
        before = SLOW.format(seconds=slow_s) if slow_s else ""
        file = self.dags / f"{name}.py"
        draft = file.with_suffix(".draft")
        draft.write_text(WATCHED.format(name=name, topic=topic, before=before))
        return draft.rename(file)

    def start_part(self, part: str) -> subprocess.Popen[bytes]:
        with self.instance.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "triggerer", part, "--config", str(self.instance.config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(os.environ),
                start_new_session=True,
            )
        self.parts.append(process)
        return process

    def command(self, *arguments: str) -> str:
        config = str(self.instance.config)
        return output_of(run_command(*arguments, "--config", config, environment=os.environ))

    def until(self, query: str, what: str, *, within_s: float = 60) -> None:
        wait_until(
            lambda: self.records.holds(query),
            within_s=within_s,
            what=what,
            of=self.instance,
            every_s=0.05,
        )

    def until_waiting(self) -> None:
        self.until(f"SELECT count(*) FROM watcher WHERE error = '{REASON}'", "a watcher waits")

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return, by asset, the number of events and the number of messages that they belong to."""
        return {name: (events, messages) for name, events, messages in self.records.rows(NUMBERS)}

    def until_counts(self, counts: dict[str, int]) -> None:
        self.until("SELECT count(*) FROM asset_event", "an event")
        wanted = {f"x-test://{name}": (count, count) for name, count in counts.items()}
        try:
            wait_until(
                lambda: self.counts() == wanted,
                within_s=120,
                what=f"events {wanted}",
                of=self.instance,
                every_s=0.1,
            )
        except AssertionError as late:
            raise AssertionError(f"{self.counts()} {late}") from None

    def end(self) -> None:
        if self.instance.is_running:
            self.instance.kill()
        for process in self.parts:
            process.kill()
            process.wait()


@pytest.fixture
def standalone(tmp_path: Path, kafka_server: KafkaServer) -> Iterator[Deployment]:
    url = f"sqlite+aiosqlite:///{tmp_path / 'home' / 'store.sqlite'}"
    deployment = Deployment(tmp_path, url, kafka_server.bootstrap_servers)
    yield deployment
    deployment.end()


@pytest.fixture
def separate(
    tmp_path: Path, empty_postgres_url: str, kafka_server: KafkaServer
) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path, empty_postgres_url, kafka_server.bootstrap_servers)
    yield deployment
    deployment.end()


def test_the_first_start_loses_no_backlog_for_a_file_that_takes_long(
    standalone: Deployment, kafka_server: KafkaServer
) -> None:
    kafka_server.create_topic("first-start")
    kafka_server.produce("first-start", ["1", "2", "3"])
    standalone.watch("quick", "first-start")
    standalone.watch("slow", "first-start", slow_s=3)
    standalone.instance.start()
    standalone.until_waiting()
    standalone.until_counts({"quick": 3, "slow": 3})
    kafka_server.produce("first-start", ["4"])
    standalone.until_counts({"quick": 4, "slow": 4})


def test_a_stream_that_was_read_before_does_not_wait_for_a_file_that_takes_long(
    standalone: Deployment, kafka_server: KafkaServer
) -> None:
    kafka_server.create_topic("read-before")
    kafka_server.produce("read-before", ["1"])
    standalone.watch("quick", "read-before")
    standalone.instance.start()
    standalone.until_counts({"quick": 1})
    assert standalone.instance.stop() == 0
    standalone.watch("slow", "read-before", slow_s=20)
    kafka_server.produce("read-before", ["2"])
    standalone.instance.start()
    standalone.until_counts({"quick": 2})
    assert standalone.records.value("SELECT count(*) FROM dag_file") == 1


def test_files_that_are_deployed_together_begin_together(
    standalone: Deployment, kafka_server: KafkaServer
) -> None:
    for topic in ("old", "new"):
        kafka_server.create_topic(topic)
    standalone.watch("old", "old")
    standalone.instance.start()
    kafka_server.produce("old", ["1"])
    standalone.until_counts({"old": 1})
    kafka_server.produce("new", ["1", "2", "3"])
    standalone.watch("slow", "new", slow_s=3)
    standalone.watch("quick", "new")
    standalone.until_waiting()
    # Open streams continue meanwhile.
    kafka_server.produce("old", ["2"])
    standalone.until_counts({"old": 2})
    standalone.until_counts({"old": 2, "quick": 3, "slow": 3})


@pytest.mark.parametrize("first", ["triggerer", "dag-processor"])
def test_separate_services_agree_by_the_database_on_when_a_new_stream_opens(
    separate: Deployment, kafka_server: KafkaServer, first: str
) -> None:
    topic = f"separate-{first}"
    kafka_server.create_topic(topic)
    kafka_server.produce(topic, ["1", "2", "3"])
    separate.watch("quick", topic)
    separate.watch("slow", topic, slow_s=4)
    other = {"triggerer": "dag-processor", "dag-processor": "triggerer"}[first]
    separate.start_part(first)
    separate.until("SELECT count(*) FROM alembic_version", "the tables are there")
    separate.start_part(other)
    separate.until_waiting()
    separate.until("SELECT count(*) FROM instance WHERE kind = 'triggerer'", "it is there")
    separate.until_counts({"quick": 3, "slow": 3})


def test_a_dag_processor_that_has_died_keeps_no_new_stream_closed(
    separate: Deployment, kafka_server: KafkaServer
) -> None:
    kafka_server.create_topic("died")
    kafka_server.produce("died", ["1", "2", "3"])
    separate.watch("quick", "died")
    separate.watch("slow", "died", slow_s=300)
    with separate.instance.config.open("a") as config:
        config.write("[dag_processor]\nparse_timeout = 6\n")
    processor = separate.start_part("dag-processor")
    separate.until_waiting()
    processor.kill()
    processor.wait()
    separate.start_part("triggerer")
    separate.until_counts({"quick": 3})


class Producing:
    """Produces a numbered message ten times a second until the block ends. `count` is the number of messages."""

    def __init__(self, kafka_server: KafkaServer, topic: str) -> None:
        self.count = 0
        self._server = kafka_server
        self._topic = topic
        self._ended = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=[self._produce()])

    def __enter__(self) -> Producing:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._ended.set()
        self._thread.join()

    async def _produce(self) -> None:
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(bootstrap_servers=self._server.bootstrap_servers)
        await producer.start()
        try:
            for number in itertools.count(1):
                if self._ended.is_set():
                    return
                await producer.send_and_wait(self._topic, str(number).encode())
                self.count = number
                await asyncio.sleep(0.1)
        finally:
            await producer.stop()


@pytest.mark.parametrize("content", [pytest.param("the same", marks=pytest.mark.soak), "another"])
def test_a_file_that_is_replaced_by_delete_and_write_misses_nothing(
    standalone: Deployment, kafka_server: KafkaServer, content: str
) -> None:
    topic = f"replaced-{content.replace(' ', '-')}"
    kafka_server.create_topic(topic)
    standalone.watch("stays", topic)
    file = standalone.watch("replaced", topic)
    text = file.read_text()
    standalone.instance.start()
    standalone.until("SELECT count(*) = 2 FROM watcher WHERE state = 'running'", "both run")
    with Producing(kafka_server, topic) as producing:
        time.sleep(1)
        file.unlink()
        standalone.until(
            "SELECT count(*) FROM dag_file WHERE missing_since IS NOT NULL", "it is missing"
        )
        assert "active (file missing)" in standalone.command("dags", "list")
        time.sleep(0.8)
        file.write_text(text if content == "the same" else f"{text}\n# another\n")
        standalone.until(
            "SELECT count(*) = 2 FROM dag_file WHERE missing_since IS NULL", "it is back"
        )
        assert "missing" not in standalone.command("dags", "list")
        time.sleep(1)
    assert producing.count > 20
    standalone.until_counts({"stays": producing.count, "replaced": producing.count})


def test_a_file_that_is_deleted_on_purpose_is_gone_after_the_grace(
    standalone: Deployment, kafka_server: KafkaServer
) -> None:
    kafka_server.create_topic("deleted")
    standalone.watch("stays", "deleted")
    file = standalone.watch("goes", "deleted")
    with standalone.instance.config.open("a") as config:
        config.write("[dag_processor]\nremoval_grace = 2\n")
    standalone.instance.start()
    kafka_server.produce("deleted", ["1"])
    standalone.until_counts({"stays": 1, "goes": 1})
    file.unlink()
    standalone.until("SELECT is_stale FROM dag WHERE dag_id = 'on_goes'", "its DAG is stale")
    standalone.until(
        "SELECT count(*) = 1 FROM watcher WHERE trigger_id IS NOT NULL", "its watcher is gone"
    )
    kafka_server.produce("deleted", ["2"])
    standalone.until(
        "SELECT count(*) = 2 FROM asset_event e JOIN asset a ON a.id = e.asset_id"
        " WHERE a.name = 'x-test://stays'",
        "its sibling goes on",
    )
    assert "on_goes" not in standalone.command("dags", "list", "--state", "active")
