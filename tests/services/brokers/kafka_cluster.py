"""A cluster of three Kafka nodes, each broker and controller. The cluster survives the loss of any one node."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient

from tests.services.brokers.kafka import broker_settings, format_broker, kafka_with_archive
from tests.services.brokers.kafka_client import KafkaClient
from tests.services.process import Daemon, accepts_connections, free_ports, running, temporary_home
from tests.services.programs.java_program import JavaProgram

NODES = (1, 2, 3)
_OF_THE_CLUSTER = {
    # Each node has a copy, and one copy may be away.
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "min.insync.replicas": 2,
    # A replica that is away for two seconds is no longer in sync.
    "replica.lag.time.max.ms": 2000,
    "unclean.leader.election.interval.ms": 1000,
    "controller.quorum.election.timeout.ms": 500,
    "controller.quorum.fetch.timeout.ms": 1000,
}


@dataclass(frozen=True, slots=True)
class Replicas:
    """The brokers of one partition: its leader, or -1 without a leader, and the replicas that are in sync."""

    leader: int
    in_sync: frozenset[int]


@contextmanager
def open_kafka_cluster(*, heap: str = "256m") -> Iterator["KafkaCluster"]:
    """Start three nodes. At the end of the block, kill them and remove their data.

    Raises:
        ServiceUnavailable: There is no Java 17, or Kafka is not cached and cannot be downloaded.
    """
    kafka = kafka_with_archive()
    with temporary_home("kafka") as home:
        cluster = KafkaCluster(kafka, home, heap=heap)
        with running(cluster):
            yield cluster


class KafkaCluster(KafkaClient):
    """A cluster whose topics have three copies. A record is acknowledged once two copies have it.

    Attributes:
        nodes: The processes of the nodes, by node id.
    """

    def __init__(self, kafka: JavaProgram, home: Path, *, heap: str) -> None:
        ports = free_ports(2 * len(NODES))
        self._ports = dict(zip(NODES, ports, strict=False))
        controllers = dict(zip(NODES, ports[len(NODES) :], strict=True))
        super().__init__(",".join(map(self._server, NODES)), replicas=len(NODES))
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in controllers.items())

        def make(node: int) -> Daemon:
            folder = home / f"node-{node}"
            folder.mkdir()
            settings = broker_settings(
                node, self._ports[node], controllers[node], folder / "data"
            ) | {"controller.quorum.voters": voters, **_OF_THE_CLUSTER}
            return format_broker(
                f"kafka-{node}", kafka, folder, settings, heap=heap,
                ready=lambda: self._is_ready(node),
            )  # fmt: skip

        with ThreadPoolExecutor(len(NODES)) as pool:
            self.nodes = dict(zip(NODES, pool.map(make, NODES), strict=True))

    def _server(self, node: int) -> str:
        return f"127.0.0.1:{self._ports[node]}"

    def start(self) -> None:
        """Start all nodes that are not running, at the same time, because a single node does not become ready."""
        with ThreadPoolExecutor(len(NODES)) as pool:
            list(pool.map(Daemon.start, self.nodes.values()))

    def kill(self) -> None:
        """Kill -9 all nodes."""
        for node in self.nodes.values():
            node.kill()

    def replicas(self, topic: str) -> dict[int, Replicas]:
        """Return by partition the leader and the in-sync replicas."""

        async def ask(admin: AIOKafkaAdminClient) -> dict[int, Replicas]:
            (described,) = await admin.describe_topics([topic])
            return {
                partition["partition"]: Replicas(partition["leader"], frozenset(partition["isr"]))
                for partition in described["partitions"]
            }

        return self._admin(ask)

    def is_whole(self, *topics: str) -> bool:
        """Return whether all nodes run and are in sync for every partition of these topics."""
        return all(node.running for node in self.nodes.values()) and all(
            len(partition.in_sync) == len(NODES)
            for topic in topics
            for partition in self.replicas(topic).values()
        )

    def _is_ready(self, node: int) -> bool:
        if not accepts_connections(self._ports[node]):
            return False

        async def ask(admin: AIOKafkaAdminClient) -> Any:
            return await admin.describe_cluster()

        brokers = self._admin(ask)["brokers"]
        return node in {broker["node_id"] for broker in brokers}
