"""A real Apache Kafka broker (KRaft, one node) on free loopback ports, its data in a directory."""

import struct
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.services.brokers.kafka_client import KafkaClient
from tests.services.process import (
    Daemon,
    ServiceError,
    accepts_connections,
    free_ports,
    running,
    temporary_home,
)
from tests.services.programs.java_program import JavaProgram, find_program


@contextmanager
def open_kafka(
    *,
    heap: str = "384m",
    behind_proxy: "BehindProxy | None" = None,
    creates_topics: bool = False,
) -> Iterator["KafkaServer"]:
    """Format a log directory and start a broker on it. At the end, kill the broker and remove the directory.

    Args:
        behind_proxy: A second listener; None: the broker has only one.
        creates_topics: Whether the broker creates each topic that a client mentions, as brokers do by default.
    Raises:
        ServiceUnavailable: There is no Java 17, or Kafka is not cached and cannot be downloaded.
    """
    with _one_broker(kafka_with_archive(), heap, behind_proxy, creates_topics) as server:
        yield server


@contextmanager
def _one_broker(
    kafka: JavaProgram,
    heap: str,
    behind_proxy: "BehindProxy | None" = None,
    creates_topics: bool = False,
) -> Iterator["KafkaServer"]:
    with temporary_home("kafka") as home:
        server = KafkaServer(
            kafka, home, heap=heap, behind_proxy=behind_proxy, creates_topics=creates_topics
        )
        with running(server):
            yield server


@cache
def kafka_with_archive() -> JavaProgram:
    """Return Kafka with an archive of its classes, which halves the processor time of a broker's start.

    Raises:
        ServiceUnavailable: There is no Java 17, or Kafka is not cached and cannot be downloaded.
    """
    return find_program("kafka").with_archive(_train)


def _train(kafka: JavaProgram) -> None:
    with _one_broker(kafka, "384m") as server:
        server.create_topic("training")
        server.produce("training", [b"a message"])
        server.stop()


class BehindProxy(NamedTuple):
    """A second listener, which tells its clients the address of a proxy instead of the broker's address."""

    port: int
    """The port where the broker listens. The proxy forwards to this port."""
    proxy_port: int
    """The port of the proxy, which the broker advertises to clients of this listener."""

    @property
    def settings(self) -> Mapping[str, str]:
        """Return the settings that add this listener to a broker."""
        return {
            "listeners": f"PROXIED://127.0.0.1:{self.port}",
            "advertised.listeners": f"PROXIED://127.0.0.1:{self.proxy_port}",
            "listener.security.protocol.map": "PROXIED:PLAINTEXT",
        }


class KafkaServer(KafkaClient):
    """One broker, which keeps its port and data over `stop`, `kill` and `start`."""

    def __init__(
        self,
        kafka: JavaProgram,
        home: Path,
        *,
        heap: str,
        behind_proxy: BehindProxy | None = None,
        creates_topics: bool = False,
    ) -> None:
        self.port, controller_port = free_ports(2)
        super().__init__(f"127.0.0.1:{self.port}", replicas=1)
        self._data = home / "data"
        settings = broker_settings(1, self.port, controller_port, self._data) | {
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}",
            "auto.create.topics.enable": str(creates_topics).lower(),
        }
        for name, added in (behind_proxy.settings if behind_proxy else {}).items():
            settings[name] = f"{settings[name]},{added}"
        self.daemon = format_broker(
            "kafka", kafka, home, settings, "--standalone", heap=heap, ready=self._is_ready
        )

    def start(self) -> None:
        """Start the broker on its port and data, and wait until it serves metadata."""
        self.daemon.start()

    def stop(self) -> None:
        """Stop the broker in order, and wait until it has ended."""
        self.daemon.stop()

    def kill(self) -> None:
        """Kill -9 the broker; the next start recovers its logs."""
        self.daemon.kill()

    def cut_log(self, topic: str, partition: int = 0, *, at: int) -> None:
        """Kill the broker, delete all batches from this offset on as an unclean leader election would, and start it."""
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

    def _is_ready(self) -> bool:
        if not accepts_connections(self.port):
            return False
        return bool(self._admin(lambda admin: admin.describe_cluster())["brokers"])


def broker_settings(node: int, port: int, controller_port: int, data: Path) -> dict[str, object]:
    """Return the settings of a node that is broker and controller. The caller adds the addresses of the controllers."""
    return {
        "process.roles": "broker,controller",
        "node.id": node,
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": data,
        "auto.create.topics.enable": "false",
        # Internal topics have one copy, as for a single node. They have few partitions, so that a node starts quickly.
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "share.coordinator.state.topic.num.partitions": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        # A group's first member does not wait for others. A member may choose a session timeout of one second, so that
        # a test soon sees that the member is dead.
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": 1000,
        "file.delete.delay.ms": 1000,
        # After a kill, the broker can register again only when its old session has expired. So keep the session short.
        "broker.session.timeout.ms": 2000,
        "broker.heartbeat.interval.ms": 500,
        # By default, the log cleaner alone takes 128 MB of heap.
        "log.cleaner.dedupe.buffer.size": 4 * 1024 * 1024,
        "num.network.threads": 2,
        "num.io.threads": 2,
    }


def format_broker(
    name: str,
    kafka: JavaProgram,
    home: Path,
    settings: Mapping[str, object],
    *format_arguments: str,
    heap: str,
    ready: Callable[[], bool],
) -> Daemon:
    """Format a node's log directory; return its process, not started yet.

    Raises:
        ServiceError: The settings are refused.
    """
    properties = home / "server.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    format_data = kafka.command(
        heap, "kafka.tools.StorageTool", "format", *format_arguments,
        "--cluster-id", "dHJpZ2dlcmVyLXRlc3RzXw", "--config", properties,
    )  # fmt: skip
    done = subprocess.run(format_data, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ServiceError(f"Kafka's format ended with {done.returncode}: {done.stderr}")
    command = kafka.command(heap, "kafka.Kafka", properties)
    return Daemon(name, command, log=home / "server.log", ready=ready)
