"""No message is lost, and none makes two events, while the service, broker and database fail now and then.

`make test-all` runs the short tests, and `make soak` runs the long ones.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.acceptance.conserving import Scene
from tests.acceptance.instance import wait_until
from tests.services.brokers.kafka import KafkaServer
from tests.services.databases.postgres import PostgresServer


@dataclass(frozen=True, slots=True)
class Load:
    messages: int
    kills: int
    broker_restarts: int
    store_outage_s: float
    flaky_s: float
    patience_s: float


SHARE = Load(8_000, kills=2, broker_restarts=1, store_outage_s=4, flaky_s=3, patience_s=150)
FULL = Load(200_000, kills=10, broker_restarts=2, store_outage_s=20, flaky_s=20, patience_s=900)


@pytest.fixture
def load(request: pytest.FixtureRequest) -> Load:
    is_full = request.node.get_closest_marker("soak") is not None
    chosen = FULL if is_full else SHARE
    print(
        f"{'the full proof' if is_full else 'a share of the proof; the rest: make soak'}: {chosen}"
    )
    return chosen


@pytest.fixture(scope="session")
def postgres_server(durable_postgres_server: PostgresServer) -> PostgresServer:
    return durable_postgres_server


@pytest.fixture
def scene(
    load: Load, kafka_server: KafkaServer, tmp_path: Path, empty_store_url: str, seed: int
) -> Iterator[Scene]:
    scene = Scene(kafka_server, tmp_path, empty_store_url, seed=seed, patience_s=load.patience_s)
    yield scene
    if scene.first.is_running:
        scene.first.kill()


def _restart_broker(scene: Scene, kafka: KafkaServer) -> None:
    scene.random.choice((kafka.stop, kafka.kill))()
    time.sleep(scene.random.uniform(0.5, 2.0))
    kafka.start()


def _disturb_store(scene: Scene, outage_s: float, request: pytest.FixtureRequest) -> None:
    """Make the store refuse writes for a while: stop PostgreSQL and start it again, or lock SQLite's file."""
    if scene.url.startswith("sqlite"):
        connection = sqlite3.connect(scene.url.split("///", 1)[1], timeout=60)
        connection.execute("BEGIN IMMEDIATE")
        time.sleep(outage_s)
        connection.rollback()
        connection.close()
    else:
        postgres: PostgresServer = request.getfixturevalue("postgres_server")
        postgres.stop()
        time.sleep(outage_s)
        postgres.start()


def _share_with_second_instance(scene: Scene, messages: int) -> None:
    """Let a second instance join, take over when the first dies, and leave when the first is back."""
    second = scene.instance("second")
    second.start()
    owners = "SELECT count(DISTINCT owner) = {} FROM stream WHERE owner IS NOT NULL"
    try:
        wait_until(
            lambda: scene.records.holds(owners.format(2)),
            within_s=60,
            what="both instances own a stream",
            of=second,
        )
        scene.first.kill()
        scene.publish(messages)
        wait_until(
            lambda: scene.records.holds(owners.format(1)),
            within_s=60,
            what="the second has taken over",
            of=second,
        )
        scene.first.start()
        wait_until(
            lambda: scene.records.holds(owners.format(2)),
            within_s=60,
            what="the first has its share again",
            of=scene.first,
        )
        assert second.stop() == 0
        assert second.orphans() == []
    finally:
        if second.is_running:
            second.kill()


def _prove(scene: Scene, load: Load, request: pytest.FixtureRequest) -> None:
    # A share of the messages is there before anybody watches; the rest comes between the disturbances.
    scene.publish(load.messages // 4)
    scene.first.start()
    acts: list[Callable[[], None]] = [scene.kill_and_restart] * load.kills
    kafka: KafkaServer = request.getfixturevalue("kafka_server")
    acts += [lambda: _restart_broker(scene, kafka)] * load.broker_restarts
    acts.append(lambda: _disturb_store(scene, load.store_outage_s, request))
    scene.random.shuffle(acts)
    if not scene.url.startswith("sqlite"):
        acts.insert(len(acts) // 2, lambda: _share_with_second_instance(scene, load.messages // 20))
    slices = load.messages // 2 // len(acts)
    scene.trouble.touch()
    timer = threading.Timer(load.flaky_s, scene.trouble.unlink)
    timer.start()
    for act in acts:
        scene.publish(slices)
        scene.pause()
        act()
    timer.join()
    scene.publish(load.messages - sum(map(len, scene.sent.values())))
    scene.check()
    assert scene.first.stop() == 0, scene.first.tail()
    assert scene.first.orphans() == []


@pytest.mark.long
@pytest.mark.rule("S1, S2, S4: under kills of whole processes")
@pytest.mark.timeout(600)
def test_each_message_becomes_one_event_of_each_watcher_in_one_run(
    scene: Scene, load: Load, request: pytest.FixtureRequest
) -> None:
    _prove(scene, load, request)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_each_of_200_000_messages_becomes_one_event_of_each_watcher_in_one_run(
    scene: Scene, load: Load, request: pytest.FixtureRequest
) -> None:
    _prove(scene, load, request)
