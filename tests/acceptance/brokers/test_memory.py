"""Large messages arrive while the database accepts no writes. They must wait at the broker, not in the service's
memory."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil
import pytest

from tests.acceptance.instance import Instance, wait_until
from tests.acceptance.records import Records
from tests.services.brokers.kafka import KafkaServer

MESSAGES = int(os.environ.get("TRIGGERER_MESSAGES") or 2_000)
PARTITIONS = 4
MESSAGE_BYTES = 1_000_000
MIB = 1024 * 1024
MOST_GROWTH_BYTES = 512 * MIB
"""The most memory that the service may need beyond its size after the start.

- Messages: 64 MiB (`max_outstanding_bytes`), and as much for their decoded copies.
- Payloads that wait to be written: 64 MiB. The database driver copies them in batches of 16 MiB.
- Kafka's client: an answer of 16 MiB, and 1 MiB for each partition.
- The rest is freed memory that the allocator does not return.
"""

DAG = """
from triggerer import DAG, Asset, AssetWatcher, task
from watchers.kafka import KafkaEventTrigger

large = Asset(name="large", uri="x-memory://large", watchers=[
    AssetWatcher("large", KafkaEventTrigger("{topic}", group_id="{topic}"))])

with DAG("on_large", schedule=large, is_paused_upon_creation=True):
    @task
    def nothing():
        pass
    nothing()
"""


class Peak:
    """The largest resident size of a process, watched from a thread."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.bytes = self.now

    @property
    def now(self) -> int:
        return int(self._process.memory_info().rss)

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            self.bytes = max(self.bytes, self.now)

    @classmethod
    @contextmanager
    def watching(cls, pid: int) -> Iterator[Peak]:
        peak = cls(pid)
        peak._thread.start()
        try:
            yield peak
        finally:
            peak._ended.set()
            peak._thread.join()


@contextmanager
def held_up(database: Path) -> Iterator[None]:
    """Lock the SQLite file against other writers until the end of the block."""
    with closing(sqlite3.connect(database, isolation_level=None, timeout=30)) as other:
        other.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            other.execute("ROLLBACK")


@pytest.fixture
def topic(kafka_server: KafkaServer) -> Iterator[str]:
    name = f"large-{uuid.uuid4().hex[:8]}"
    kafka_server.create_topic(name, PARTITIONS)
    yield name
    kafka_server.delete_topic(name)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_large_messages_wait_at_the_broker_while_the_database_takes_nothing(
    kafka_server: KafkaServer, topic: str, tmp_path: Path
) -> None:
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "large.py").write_text(DAG.format(topic=topic))
    database = tmp_path / "triggerer.db"
    service = Instance(
        tmp_path / "home",
        dags_folder=dags,
        database_url=f"sqlite:///{database}",
        bootstrap=kafka_server.bootstrap_servers,
        settings="[executor]\nprewarm = false\n",
    )
    records = Records(f"sqlite:///{database}")
    _publish(kafka_server, topic)
    service.start()
    try:
        records.wait_until("SELECT count(*) FROM watcher WHERE state = 'running'")
        with Peak.watching(service.pid) as peak:
            idle = peak.now
            with held_up(database):
                _until_it_grows_no_more(peak)
                stored = records.value("SELECT count(*) FROM asset_event")
                assert stored < MESSAGES // 2, "the database was not held up"
                held = peak.bytes
            _check(held - idle, "while the database took nothing")
            wait_until(
                lambda: records.holds(f"SELECT count(*) = {MESSAGES} FROM asset_event"),
                within_s=600,
                what="all messages are stored",
                of=service,
            )
            wait_until(
                lambda: sum(kafka_server.committed_offsets(topic, topic).values()) == MESSAGES,
                within_s=60,
                what="all messages are committed",
                of=service,
            )
            _check(peak.bytes - idle, "while it caught up")
            print(f"idle {idle // MIB} MiB, held up {held // MIB}, at most {peak.bytes // MIB}")
        assert records.value("SELECT count(DISTINCT idempotency_key) FROM asset_event") == MESSAGES
        assert service.stop() == 0
    finally:
        if service.is_running:
            service.kill()


def _publish(kafka: KafkaServer, topic: str) -> None:
    text = "x" * (MESSAGE_BYTES - 20)
    for first in range(0, MESSAGES, 100):
        numbers = range(first, min(first + 100, MESSAGES))
        kafka.produce(
            topic,
            [f'{{"n":{n},"text":"{text}"}}' for n in numbers],
            partition=first // 100 % PARTITIONS,
        )


def _until_it_grows_no_more(peak: Peak) -> None:
    """Wait until the peak grows by less than 16 MiB in ten seconds.

    The memory always grows a little, with each failed write. A buffer without a bound would grow by hundreds of MiB in
    ten seconds.
    """
    before = 0
    while peak.bytes > before + 16 * MIB:
        before = peak.bytes
        time.sleep(10)


def _check(growth: int, when: str) -> None:
    assert growth < MOST_GROWTH_BYTES, f"{growth // MIB} MiB {when}"
