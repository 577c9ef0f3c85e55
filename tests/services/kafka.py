"""A real Apache Kafka broker (KRaft, one node) on free loopback ports, its data in a directory."""

import asyncio
import fcntl
import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError, for_code
from aiokafka.protocol.commit import OffsetFetchRequest

from tests.services.java import find_java
from tests.services.process import (
    Daemon,
    ServiceError,
    ServiceUnavailable,
    accepts_connections,
    free_ports,
    run_apart,
)

POM = Path(__file__).with_name("kafka") / "pom.xml"
TIMEOUT_S = 30.0
T = TypeVar("T")


@contextmanager
def open_kafka(*, heap: str = "384m") -> Iterator["KafkaServer"]:
    """Format a log directory, start a broker on it, and remove both at the end.

    The first use on a machine takes the broker from Maven's repository (43 MB) into a cache.

    Raises:
        ServiceUnavailable: There is no Java 17, or no broker in the cache and no way to get it.
    """
    java, classpath = find_java(), find_kafka()
    home = Path(tempfile.mkdtemp(prefix="triggerer-kafka-"))
    try:
        server = KafkaServer(java, classpath, home, heap=heap)
        server.start()
        try:
            yield server
        finally:
            server.kill()
    finally:
        shutil.rmtree(home, ignore_errors=True)


@cache
def find_kafka() -> str:
    """The broker's class path, from a cache that outlives the checkout.

    Raises:
        ServiceUnavailable: It is not cached, and Maven is missing or could not get it.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "triggerer-tests"
    jars = root / f"kafka-{hashlib.sha256(POM.read_bytes()).hexdigest()[:12]}"
    root.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("w") as lock:
        # Other workers of the session want it at the same time.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jars.is_dir():
            _take_jars(jars)
    return f"{jars}/*"


def _take_jars(target: Path) -> None:
    if (maven := shutil.which("mvn")) is None:
        raise ServiceUnavailable("no Kafka broker: Maven (mvn), which gets it, is not on PATH")
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        done = subprocess.run(
            [
                maven, "--batch-mode", "--quiet", f"--file={POM}",
                "dependency:copy-dependencies", "-DincludeScope=runtime",
                f"-DoutputDirectory={scratch}/jars",
            ],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise ServiceUnavailable(f"Maven could not get Kafka: {done.stdout.strip()[:500]}")
        Path(scratch, "jars").rename(target)


class KafkaServer:
    """One broker. Its port and data stay the same over `stop`, `kill` and `start`.

    Topics are never made by being mentioned: see `create_topic`.
    """

    def __init__(self, java: Path, classpath: str, home: Path, *, heap: str) -> None:
        self.port, controller_port = free_ports(2)
        self.bootstrap_servers = f"127.0.0.1:{self.port}"
        self._data = home / "data"
        properties = home / "server.properties"
        properties.write_text(_properties(self.port, controller_port, self._data))
        logger = "-Dorg.slf4j.simpleLogger"
        java_command: list[str | Path] = [
            java, f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", classpath,
            f"{logger}.defaultLogLevel=warn", f"{logger}.showDateTime=true",
            f"{logger}.dateTimeFormat=HH:mm:ss.SSS",
        ]  # fmt: skip
        format_data = [
            *java_command, "kafka.tools.StorageTool", "format", "--standalone",
            "--cluster-id", "dHJpZ2dlcmVyLXRlc3RzXw", "--config", properties,
        ]  # fmt: skip
        done = subprocess.run(format_data, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ServiceError(f"Kafka's format ended with {done.returncode}: {done.stderr}")
        self.daemon = Daemon(
            "kafka",
            [*java_command, "kafka.Kafka", properties],
            log=home / "server.log",
            ready=self._is_ready,
        )

    def start(self) -> None:
        """Start it on its port and data, and wait until it serves metadata."""
        self.daemon.start()

    def stop(self) -> None:
        """Shut down properly."""
        self.daemon.stop()

    def kill(self) -> None:
        """Kill -9 the broker; the next start recovers its logs."""
        self.daemon.kill()

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> None:
        """Make a topic and wait until the broker serves it.

        Args:
            config: The topic's own settings, with `_` for `.`, such as `retention_ms="1000"`.
        """
        settings = {key.replace("_", "."): value for key, value in config.items()}
        topic = NewTopic(
            name, num_partitions=partitions, replication_factor=1, topic_configs=settings
        )

        async def ask(admin: AIOKafkaAdminClient) -> None:
            for _, code, message in (await admin.create_topics([topic])).topic_errors:
                _raise_for(code, f"topic {name} not created: {message}")

        self._admin(ask)
        self._await_partitions(name, partitions)

    def delete_topic(self, name: str) -> None:
        """Remove a topic. Its name can be used again at once, for a topic with another id."""

        async def ask(admin: AIOKafkaAdminClient) -> None:
            for _, code in (await admin.delete_topics([name])).topic_error_codes:
                _raise_for(code, f"topic {name} not deleted")

        self._admin(ask)

    def add_partitions(self, topic: str, total: int) -> None:
        """Let the topic have `total` partitions, which must be more than it has."""
        self._admin(lambda admin: admin.create_partitions({topic: NewPartitions(total)}))
        self._await_partitions(topic, total)

    def delete_records(self, topic: str, partition: int, *, before: int) -> None:
        """Remove the records below an offset, as retention would."""
        below = {TopicPartition(topic, partition): RecordsToDelete(before_offset=before)}
        self._admin(lambda admin: admin.delete_records(below))

    def cut_log(self, topic: str, partition: int = 0, *, at: int) -> None:
        """Kill, lose all batches from this offset on as an unclean leader election would, and start."""
        self.kill()
        data = self._data
        (log,) = (data / f"{topic}-{partition}").glob("*.log")
        content = log.read_bytes()
        kept = 0
        while kept < len(content):
            base, length = struct.unpack_from(">qi", content, kept)
            if base >= at:
                break
            kept += 12 + length
        log.write_bytes(content[:kept])
        for derived in (*log.parent.glob("*index"), log.parent / "leader-epoch-checkpoint"):
            derived.unlink(missing_ok=True)
        for checkpoint in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
            (data / checkpoint).unlink(missing_ok=True)
        self.start()

    def partitions(self, topic: str) -> list[int]:
        """The topic's partitions, in order."""

        async def ask(admin: AIOKafkaAdminClient) -> list[int]:
            (described,) = await admin.describe_topics([topic])
            _raise_for(described["error_code"], f"topic {topic}")
            return sorted(partition["partition"] for partition in described["partitions"])

        return self._admin(ask)

    def end_offsets(self, topic: str) -> dict[int, int]:
        """By partition, the offset that the next record gets."""
        places = self._places(topic)
        return _by_partition(self._consumer(lambda consumer: consumer.end_offsets(places)))

    def start_offsets(self, topic: str) -> dict[int, int]:
        """By partition, the offset of the oldest record that is left."""
        places = self._places(topic)
        return _by_partition(self._consumer(lambda consumer: consumer.beginning_offsets(places)))

    def committed_offsets(self, group: str, topic: str) -> dict[int, int]:
        """By partition, where the group resumes; partitions without a commit are left out."""
        asked = [(topic, self.partitions(topic))]

        # Spelt out: aiokafka's own look-ups leave out the error of the answer as a whole, and so take
        # "still loading" for "nothing committed" (0.14, consumer and admin client alike).
        async def ask(admin: AIOKafkaAdminClient) -> dict[int, int]:
            coordinator = await admin.find_coordinator(group)
            answer = await admin._send_request(OffsetFetchRequest(group, asked), coordinator)
            _raise_for(answer.error_code, f"commits of {group}")
            ((_, places),) = answer.topics
            for partition, _, _, code in places:
                _raise_for(code, f"commit of {group} for {topic}[{partition}]")
            return {partition: offset for partition, offset, _, _ in places if offset >= 0}

        return self._admin(ask)

    def group_members(self, group: str) -> int:
        """How many consumers the group has now."""

        async def ask(admin: AIOKafkaAdminClient) -> int:
            (response,) = await admin.describe_consumer_groups([group])
            (described,) = response.to_object()["groups"]
            _raise_for(described["error_code"], f"group {group}")
            return len(described["members"])

        return self._admin(ask)

    def produce(
        self,
        topic: str,
        values: Sequence[bytes | str],
        *,
        partition: int = 0,
        key: bytes | str | None = None,
    ) -> list[int]:
        """Write records in order, each once, acknowledged by the broker; their offsets."""

        async def write() -> list[int]:
            async with AIOKafkaProducer(**self._client(), enable_idempotence=True) as producer:
                sent = [
                    await producer.send(topic, _bytes(value), key=_bytes(key), partition=partition)
                    for value in values
                ]
                return [record.offset for record in await asyncio.gather(*sent)]

        return run_apart(write())

    def _await_partitions(self, topic: str, count: int) -> None:
        """Wait until every partition is known and has a leader that answers for it."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                if len(self.end_offsets(topic)) == count:
                    return
            except UnknownTopicOrPartitionError:
                pass  # not known yet
            if time.monotonic() > deadline:
                raise ServiceError(f"topic {topic} has not got {count} partitions in time")
            time.sleep(0.02)

    def _places(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, partition) for partition in self.partitions(topic)]

    def _admin(self, request: Callable[[AIOKafkaAdminClient], Awaitable[T]]) -> T:
        """An answer of the admin interface, once a broker that just started can give it."""

        async def attempt() -> T:
            admin = AIOKafkaAdminClient(**self._client())
            try:
                await admin.start()
                return await request(admin)
            finally:
                await admin.close()

        async def attempts() -> T:
            deadline = time.monotonic() + TIMEOUT_S
            while True:
                try:
                    return await attempt()
                except UnknownTopicOrPartitionError:
                    raise
                except KafkaError as error:
                    if not error.retriable or time.monotonic() > deadline:
                        raise
                await asyncio.sleep(0.05)

        # Not confluent-kafka, whose admin client needs no loop: the garbage collector may find such a client
        # while it runs in librdkafka's own thread, and that aborts the process
        # (confluent-kafka-python#2129; with 2.16.1, every second run of test_services.py).
        return run_apart(attempts())

    def _consumer(self, request: Callable[[AIOKafkaConsumer], Awaitable[T]]) -> T:
        """An answer to a consumer without a group; the client itself repeats what can be."""

        async def ask() -> T:
            async with AIOKafkaConsumer(**self._client()) as consumer:
                return await request(consumer)

        return run_apart(ask())

    def _client(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.bootstrap_servers,
            "request_timeout_ms": int(TIMEOUT_S * 1000),
            "retry_backoff_ms": 50,
        }

    def _is_ready(self) -> bool:
        if not accepts_connections(self.port):
            return False
        return bool(self._admin(lambda admin: admin.describe_cluster())["brokers"])


def _raise_for(code: int, what: str) -> None:
    if code:
        raise for_code(code)(what)


def _by_partition(offsets: dict[TopicPartition, int]) -> dict[int, int]:
    return {place.partition: offset for place, offset in offsets.items()}


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _properties(port: int, controller_port: int, data: Path) -> str:
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": data,
        "auto.create.topics.enable": "false",
        # Internal topics: one node cannot have copies, and many partitions only slow the start.
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "share.coordinator.state.topic.num.partitions": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        # A group's first member need not wait for a second, and a dead one may be noticed soon.
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": 1000,
        "file.delete.delay.ms": 1000,
        # After a kill, the broker may come back under its id once its old session is over.
        "broker.session.timeout.ms": 2000,
        "broker.heartbeat.interval.ms": 500,
        # Small enough for a laptop: the cleaner alone would take 128 MB of heap.
        "log.cleaner.dedupe.buffer.size": 4 * 1024 * 1024,
        "num.network.threads": 2,
        "num.io.threads": 2,
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())
