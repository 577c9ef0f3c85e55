"""Tests of the functions of tests/services that start real servers."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import aiokafka
import asyncpg
import psutil
import pytest
from aiokafka.errors import UnknownTopicOrPartitionError
from sqlalchemy import func, select

from tests.services.brokers.kafka import KafkaServer
from tests.services.databases.postgres import PostgresServer
from tests.services.process import (
    Daemon,
    ServiceError,
    ServiceUnavailable,
    accepts_connections,
    lives,
)
from tests.services.programs import java
from triggerer.store.database.opening import open_database
from triggerer.store.schema.migrate import current
from triggerer.store.schema.migrations import THIS_RELEASE
from triggerer.store.schema.models import Dag


@pytest.fixture(scope="session")
def postgres_server(durable_postgres_server: PostgresServer) -> PostgresServer:
    return durable_postgres_server


async def _connect(url: str) -> asyncpg.Connection:
    return await asyncpg.connect(url.replace("+asyncpg", ""))


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_postgres_keeps_its_port_and_data_when_it_ends_and_starts_again(
    postgres_server: PostgresServer, postgres_url: str, how: str
) -> None:
    connection = await _connect(postgres_url)
    await connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    pid = postgres_server.daemon.pid

    await asyncio.to_thread(getattr(postgres_server, how))
    assert not psutil.pid_exists(pid)
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await connection.execute("SELECT 1")
    connection.terminate()
    with pytest.raises(OSError, match="Connect call failed"):
        await _connect(postgres_url)

    await asyncio.to_thread(postgres_server.start)
    connection = await _connect(postgres_url)
    assert await connection.fetchval("SELECT answer FROM kept") == 42
    assert await connection.fetchval("SHOW fsync") == "on"
    await connection.close()


async def test_a_postgres_database_can_be_a_copy_of_a_template(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    connection = await _connect(postgres_url)
    await connection.execute("CREATE TABLE migrated (id int)")
    await connection.close()
    template = postgres_url.rpartition("/")[2]

    url = postgres_server.create_database(f"{template}_copy", template=template)
    connection = await _connect(url)
    assert await connection.fetchval("SELECT count(*) FROM migrated") == 0
    postgres_server.drop_database(f"{template}_copy")  # although somebody is connected
    connection.terminate()


def test_a_refused_postgres_command_says_why(postgres_server: PostgresServer) -> None:
    with pytest.raises(ServiceError, match="already exists"):
        postgres_server.create_database("postgres")


async def test_a_store_test_runs_on_both_databases_and_each_url_is_fresh(store_url: str) -> None:
    async with open_database(store_url) as database:
        assert await current(database) == THIS_RELEASE.newest
        async with database.reading() as session:
            assert await session.scalar(select(func.count()).select_from(Dag)) == 0


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_kafka_keeps_its_port_records_and_commits_when_it_ends_and_starts_again(
    kafka_server: KafkaServer, how: str
) -> None:
    topic = group = f"kept-{uuid.uuid4().hex[:8]}"
    kafka_server.create_topic(topic, partitions=2)
    assert kafka_server.produce(topic, ["a", "b", "c"], partition=1, key="k") == [0, 1, 2]
    assert kafka_server.committed_offsets(group, topic) == {}
    async with aiokafka.AIOKafkaConsumer(
        bootstrap_servers=kafka_server.bootstrap_servers, group_id=group, enable_auto_commit=False
    ) as consumer:
        consumer.subscribe([topic])
        while not consumer.assignment():
            await consumer.getmany(timeout_ms=50)
        assert kafka_server.group_members(group) == 1
        await consumer.commit({aiokafka.TopicPartition(topic, 1): 2})

    await asyncio.to_thread(getattr(kafka_server, how))
    assert not accepts_connections(kafka_server.port)
    await asyncio.to_thread(kafka_server.start)

    assert kafka_server.partitions(topic) == [0, 1]
    assert kafka_server.end_offsets(topic) == {0: 0, 1: 3}
    assert kafka_server.committed_offsets(group, topic) == {1: 2}
    async with aiokafka.AIOKafkaConsumer(
        topic, bootstrap_servers=kafka_server.bootstrap_servers, group_id=group
    ) as consumer:
        record = await asyncio.wait_for(consumer.getone(), 30)
        assert (record.partition, record.offset, record.value, record.key) == (1, 2, b"c", b"k")


async def test_kafka_topics_grow_expire_vanish_and_come_back_empty(
    kafka_server: KafkaServer,
) -> None:
    topic = f"topic-{uuid.uuid4().hex[:8]}"
    kafka_server.create_topic(topic, retention_ms="60000")
    kafka_server.produce(topic, [b"a", b"b"])
    kafka_server.delete_records(topic, 0, before=1)
    assert kafka_server.start_offsets(topic) == {0: 1}
    kafka_server.add_partitions(topic, 3)
    assert kafka_server.end_offsets(topic) == {0: 2, 1: 0, 2: 0}
    kafka_server.delete_topic(topic)
    kafka_server.create_topic(topic)
    assert kafka_server.end_offsets(topic) == {0: 0}


def test_a_kafka_topic_is_not_made_by_being_mentioned(kafka_server: KafkaServer) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="topic absent"):
        kafka_server.partitions("absent")


def test_a_server_that_ends_at_once_shows_its_log(tmp_path: Path) -> None:
    daemon = Daemon(
        "broken",
        ["/bin/sh", "-c", "echo no licence; exit 3"],
        log=tmp_path / "log",
        ready=lambda: False,
    )
    with pytest.raises(ServiceError, match=r"broken ended with 3 at its start:\nno licence"):
        daemon.start()
    assert not daemon.running


def test_a_server_that_ignores_the_request_to_stop_is_killed_and_named(tmp_path: Path) -> None:
    flag = tmp_path / "trapped"
    daemon = Daemon(
        "deaf",
        ["/bin/sh", "-c", f"trap '' TERM; touch {flag}; while :; do sleep 0.1; done"],
        log=tmp_path / "log",
        ready=flag.exists,
    )
    daemon.start()
    pid = daemon.pid
    with pytest.raises(ServiceError, match="deaf did not stop"):
        daemon.stop(within_s=0.3)
    assert not psutil.pid_exists(pid)


def test_a_server_does_not_outlive_a_test_session_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.services.process import Daemon\n"
        "d = Daemon('s', ['sleep', '600'], log=Path(sys.argv[1]), ready=lambda: True)\n"
        "d.start(); print(d.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "log")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as session:
        assert session.stdout is not None
        pid = int(session.stdout.readline())
        assert psutil.pid_exists(pid)
        os.kill(session.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while lives(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_old_or_missing_java_is_reported_as_such(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'java version \"1.8.0_391\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java, "find_spec", lambda _: None)
    with pytest.raises(ServiceUnavailable, match=r"no Java 17 or newer .*; .*/java is Java 8$"):
        java.find_java.__wrapped__()
