"""PostgreSQL fails over to its standby, under load from Kafka, and the former primary comes back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.acceptance.conserving import Scene
from tests.acceptance.instance import Instance, wait_until
from tests.acceptance.records import Records
from tests.services.availability import service
from tests.services.brokers.kafka import KafkaServer
from tests.services.databases.postgres import PostgresServer, open_postgres, open_standby
from tests.services.tcp_proxy import open_tcp_proxy

LEASE_S = 15
OURS = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'triggerer%'"
STATE = """
SELECT (SELECT count(*) FROM asset_event), (SELECT count(*) FROM dag_run), max(expires_at) FROM instance
"""


class Pair:
    """A primary and its standby, with an empty database."""

    def __init__(self, primary: PostgresServer, standby: PostgresServer) -> None:
        self.primary = primary
        self.standby = standby
        self.url = primary.url("pair")

    def replicate_synchronously(self) -> None:
        self.primary.set(synchronous_standby_names="*")
        wait_until(
            lambda: Records(self.url).holds(
                "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
            ),
            within_s=30,
            what="the standby is synchronous",
        )

    @property
    def url_of_both(self) -> str:
        """The URL of both servers, in the form of libpq."""
        ports = (self.primary.port, self.standby.port)
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        return f"postgresql://postgres@{hosts}/pair?target_session_attrs=read-write"


@pytest.fixture
def pair() -> Iterator[Pair]:
    with service(open_postgres()) as primary:
        primary.create_database("pair")
        with service(open_standby(primary)) as standby:
            yield Pair(primary, standby)


def _wait_for_events(scene: Scene, instance: Instance, *, more_than: int = 0) -> int:
    def has_more() -> bool:
        return scene.records.holds(f"SELECT count(*) > {more_than} FROM asset_event")

    wait_until(has_more, within_s=90, what=f"more than {more_than} events", of=instance)
    return int(scene.records.value("SELECT count(*) FROM asset_event"))


def _end(*instances: Instance) -> None:
    for instance in instances:
        if instance.is_running:
            instance.kill()


@pytest.mark.soak
def test_a_failover_with_synchronous_replication_loses_and_doubles_nothing(
    pair: Pair, kafka_server: KafkaServer, tmp_path: Path
) -> None:
    pair.replicate_synchronously()
    scene = Scene(kafka_server, tmp_path, pair.url, seed=time.time_ns() % 2**32, patience_s=120)
    instances = [scene.instance(name, url=pair.url_of_both) for name in ("one", "other")]
    scene.first = instances[0]
    try:
        for instance in instances:
            instance.start()
        with scene.publishing():
            _wait_for_events(scene, instances[0], more_than=500)
            pair.primary.kill()
            pair.standby.promote()
            scene.records = Records(pair.standby.url("pair"))
            before = _wait_for_events(scene, instances[0])
            after = _wait_for_events(scene, instances[0], more_than=before + 200)
            # Start the former primary. It takes writes, and comes first in the URL, but the services must not use it.
            pair.primary.start()
            former = Records(pair.url)
            left_with = former.rows(STATE)
            _wait_for_events(scene, instances[0], more_than=after + 1000)
        scene.check()
        assert (former.value(OURS), former.rows(STATE)) == (0, left_with)
        for instance in instances:
            assert instance.stop() == 0, instance.tail()
    finally:
        _end(*instances)


def test_connections_to_a_former_primary_that_never_went_away_are_left(
    pair: Pair, kafka_server: KafkaServer, tmp_path: Path
) -> None:
    # The standby is promoted although the primary is alive. The connections through the proxy stay open.
    with open_tcp_proxy(pair.primary.port) as proxy:
        scene = Scene(kafka_server, tmp_path, pair.url, seed=time.time_ns() % 2**32, patience_s=120)
        port = urlsplit(pair.url).port
        url = pair.url.replace(f":{port}/", f":{proxy.port}/")
        instances = [scene.instance(name, url=url) for name in ("one", "other")]
        scene.first = instances[0]
        try:
            for instance in instances:
                instance.start()
            scene.publish(100)
            scene.check()
            former = Records(pair.url)
            wait_until(
                lambda: former.holds(
                    "SELECT pg_current_wal_lsn() = replay_lsn FROM pg_stat_replication"
                ),
                within_s=30,
                what="the standby has everything",
            )
            pair.standby.promote()
            proxy.lead_to(pair.standby.port)
            wait_until(
                lambda: former.value(OURS) == 0,
                within_s=LEASE_S,
                what="nobody acts on the former primary",
                of=instances[0],
            )
            scene.records = Records(pair.standby.url("pair"))
            scene.publish(200)
            scene.check()
            for instance in instances:
                assert instance.stop() == 0, instance.tail()
        finally:
            _end(*instances)


@pytest.mark.soak
def test_an_event_that_the_synchronous_standby_lacks_is_not_acknowledged(
    pair: Pair, kafka_server: KafkaServer, tmp_path: Path
) -> None:
    pair.replicate_synchronously()
    scene = Scene(
        kafka_server,
        tmp_path,
        pair.url_of_both,
        seed=time.time_ns() % 2**32,
        patience_s=120,
        # The leases outlast the outage. So a lost lease cannot be the reason if no offset is committed.
        settings="[triggerer]\nlease_duration = 120\n",
    )
    scene.records = Records(pair.url)
    config = scene.first.config
    config.write_text(config.read_text().replace("[database]", "[database]\ncommit_timeout = 1"))
    try:
        scene.first.start()
        scene.publish(100)
        scene.wait_until_committed()
        groups = [f"{scene.topic}-one", f"{scene.topic}-two"]
        told = [kafka_server.committed_offsets(group, scene.topic) for group in groups]
        pair.standby.stop()
        scene.publish(100)
        # Without its standby, the primary confirms no commit within `commit_timeout`. So the service does not know that
        # its rows are stored. It repeats the transaction, and then finds the rows.
        wait_until(
            lambda: scene.records.holds("SELECT count(*) > 250 FROM asset_event"),
            within_s=30,
            what="events are stored on the primary alone",
            of=scene.first,
        )
        time.sleep(6)
        assert told == [kafka_server.committed_offsets(group, scene.topic) for group in groups]
        pair.primary.kill()
        pair.standby.start()
        pair.standby.promote()
        scene.records = Records(pair.standby.url("pair"))
        scene.check()
        assert scene.first.stop() == 0, scene.first.tail()
    finally:
        _end(scene.first)
