"""`triggerer standalone` on a cluster of three Kafka nodes that die one at a time. For `make soak`."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import orjson
import pytest

from tests.acceptance.conserving import PARTITIONS, Scene
from tests.acceptance.instance import Instance, wait_until
from tests.acceptance.records import Records
from tests.services.availability import skip_or_fail
from tests.services.brokers.kafka_cluster import KafkaCluster, open_kafka_cluster
from tests.services.process import ServiceUnavailable

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]
OFFSETS = "__consumer_offsets"

ONE_WATCHER = """
from triggerer import Asset, AssetWatcher
from watchers.kafka import KafkaEventTrigger

seen = Asset(name="seen", uri="x-cut://seen", watchers=[AssetWatcher("seen", KafkaEventTrigger("{topic}"))])
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    with ExitStack() as stack:
        try:
            cluster = stack.enter_context(open_kafka_cluster())
        except ServiceUnavailable as absent:
            skip_or_fail(str(absent))
        yield cluster


def test_any_node_of_three_may_die_under_load(
    cluster: KafkaCluster, tmp_path: Path, empty_sqlite_url: str
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    scene = Scene(cluster, tmp_path, empty_sqlite_url, seed=seed, patience_s=120)
    scene.first.start()
    with scene.publishing() as publisher:
        groups = [f"{scene.topic}-one", f"{scene.topic}-two"]
        wait_until(
            lambda: all(
                len(cluster.committed_offsets(group, scene.topic)) == PARTITIONS for group in groups
            ),
            within_s=60,
            what="both groups have committed",
            of=scene.first,
        )
        for topic in (scene.topic, OFFSETS, scene.topic, OFFSETS):
            node = cluster.replicas(topic)[0].leader
            print(f"node {node}, which leads {topic}[0], is killed")
            cluster.nodes[node].kill()
            # Messages are published without the node, from before the election of another leader until after it.
            time.sleep(5)
            assert cluster.replicas(topic)[0].leader not in {-1, node}
            cluster.start()
            wait_until(
                lambda: cluster.is_whole(scene.topic, OFFSETS),
                within_s=60,
                what="all replicas are in sync",
            )
        assert publisher.is_alive(), "the publisher failed"
    try:
        scene.check()
        assert scene.first.stop() == 0, scene.first.tail()
    finally:
        if scene.first.is_running:
            scene.first.kill()


def test_messages_lost_by_an_unclean_election_are_told_from_their_replacements(
    cluster: KafkaCluster, tmp_path: Path, empty_sqlite_url: str
) -> None:
    topic = f"cut-{tmp_path.name}"
    first, lagging, _ = cluster.nodes
    cluster.create_topic(
        topic,
        placed={0: [first, lagging]},
        unclean_leader_election_enable="true",
        min_insync_replicas="1",
    )
    wait_until(lambda: cluster.is_whole(OFFSETS), within_s=60, what="all replicas are in sync")
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "one.py").write_text(ONE_WATCHER.format(topic=topic))
    instance = Instance(
        tmp_path / "home",
        dags_folder=dags,
        database_url=empty_sqlite_url,
        bootstrap=cluster.bootstrap_servers,
    )
    records = Records(empty_sqlite_url)
    instance.start()
    try:
        cluster.produce(topic, _messages(*range(5)))
        records.wait_until("SELECT count(*) = 5 FROM asset_event")
        cluster.nodes[lagging].kill()
        wait_until(
            lambda: cluster.replicas(topic)[0].in_sync == {first},
            within_s=30,
            what="one replica is in sync",
        )
        lost = range(5, 10)
        cluster.produce(topic, _messages(*lost))
        records.wait_until("SELECT count(*) = 10 FROM asset_event")
        cluster.nodes[first].kill()
        cluster.nodes[lagging].start()
        wait_until(
            lambda: cluster.replicas(topic)[0].leader == lagging,
            within_s=60,
            what="the replica leads",
        )
        cluster.produce(topic, _messages(*range(100, 107)))
        cluster.start()
        records.wait_until("SELECT count(*) = 17 FROM asset_event")
        cluster.produce(topic, _messages(107))
        records.wait_until("SELECT count(*) = 18 FROM asset_event")
        found = records.rows("SELECT extra FROM asset_event ORDER BY id")
        assert [orjson.loads(extra)["value"] for (extra,) in found] == [
            *range(10),
            *range(100, 108),
        ]
        assert "the log was cut at 5" in instance.log.read_text()
        assert instance.stop() == 0, instance.tail()
    finally:
        if instance.is_running:
            instance.kill()
        cluster.start()


def _messages(*numbers: int) -> list[bytes]:
    return [orjson.dumps(number) for number in numbers]
