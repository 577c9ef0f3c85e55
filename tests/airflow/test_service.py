"""A whole `triggerer standalone` hosts triggers of Airflow's Kafka provider. The tests need Airflow installed."""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("airflow", reason="Airflow is not installed in this environment")

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.acceptance.instance import Instance, wait_until
from tests.services.brokers.kafka import KafkaServer

DAGS = """
from airflow.providers.apache.kafka.triggers.shared_stream import KafkaSharedStreamTrigger
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from triggerer import DAG, Asset, AssetWatcher, task
from watchers.airflow import AirflowEventTrigger

def shared(name):
    trigger = KafkaSharedStreamTrigger(topics=["{topic}"], poll_timeout=0.2)
    return Asset(f"x-{{name}}", name=name, watchers=[AssetWatcher("kafka", AirflowEventTrigger(trigger))])

orders, audit = shared("orders"), shared("audit")
queue = Asset("x-queue", name="queue", watchers=[AssetWatcher("queue", AirflowEventTrigger(
    MessageQueueTrigger(
        scheme="kafka", topics=["{queue}"], kafka_config_id="queue", poll_timeout=0.2, poll_interval=0.1
    )
))])

with DAG("on_orders", schedule=orders):
    @task
    def collect(triggering_asset_events):
        print("got", [event.extra["payload"] for event in triggering_asset_events[orders]])
    collect()
"""
CONFIG = """
[connections.kafka_default]
bootstrap_servers = "{servers}"
group_id = "{group}"
enable_auto_commit = "false"
auto_offset_reset = "earliest"

[connections.queue]
bootstrap_servers = "{servers}"
group_id = "{group}-queue"
enable_auto_commit = "false"
auto_offset_reset = "earliest"
"""
STARTS_WITHIN_S = 90
"""A start is slow, because the service, the parser of the DAG file and each worker import Airflow."""


class Service(Instance):
    """A service with new topics and consumer groups, and a DAG on triggers of Airflow's provider."""

    def __init__(self, folder: Path, server: KafkaServer) -> None:
        name = f"airflow-{uuid.uuid4().hex[:8]}"
        self.topic, self.queue, self.group = name, f"{name}-queue", name
        self.servers = server.bootstrap_servers
        for topic in (self.topic, self.queue):
            server.create_topic(topic)
        dags = folder / "dags"
        dags.mkdir()
        (dags / "orders.py").write_text(DAGS.format(topic=self.topic, queue=self.queue))
        super().__init__(
            folder / "home",
            dags_folder=dags,
            database_url=f"sqlite:///{folder / 'home' / 'triggerer.sqlite'}",
            bootstrap=self.servers,
        )
        # In an environment without our package installed, no entry point names the plugin. So allow its module.
        allowed = '[core]\nallowed_trigger_modules = ["watchers.airflow"]\n'
        config = self.config.read_text().replace("[core]\n", allowed, 1)
        self.config.write_text(config + CONFIG.format(servers=self.servers, group=self.group))

    def json(self, *arguments: str) -> list[dict[str, Any]]:
        done = subprocess.run(
            [sys.executable, "-m", "triggerer", *arguments, "--json", *self._options()],
            cwd=self.home,
            env=dict(os.environ),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return json.loads(done.stdout) if done.returncode == 0 else []

    def _options(self) -> list[str]:
        return ["--limit", "0", "--config", str(self.config)]

    def send(self, topic: str, *values: str) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        for value in values:
            producer.produce(topic, value=value.encode())
        assert producer.flush(30) == 0

    def committed(self) -> int:
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": self.group})
        try:
            (position,) = consumer.committed([TopicPartition(self.topic, 0)], timeout=30)
            return int(position.offset)
        finally:
            consumer.close()

    def events(self, asset: str) -> list[str]:
        """Return the payloads of the asset's events, oldest first."""
        found = self.json("assets", "events", "--asset", asset)
        return [event["extra"]["payload"] for event in reversed(found)]

    def until_watching(self) -> None:
        def watches() -> bool:
            states = [watcher["state"] for watcher in self.json("watchers", "list")]
            return states == ["running"] * 3

        wait_until(watches, within_s=STARTS_WITHIN_S, what="all three watchers run", of=self)

    def until_events(self, asset: str, values: list[str]) -> None:
        wait_until(
            lambda: self.events(asset) == values,
            within_s=60,
            what=f"{asset} has the events {values}",
            of=self,
        )


@pytest.fixture
def service(tmp_path: Path, kafka_server: KafkaServer) -> Iterator[Service]:
    made = Service(tmp_path, kafka_server)
    made.start()
    try:
        yield made
    finally:
        made.kill()
        assert made.orphans() == []


def test_a_standalone_hosts_the_kafka_providers_triggers_and_runs_what_waits_for_them(
    service: Service,
) -> None:
    service.until_watching()
    watchers = {row["asset_name"]: row for row in service.json("watchers", "list")}
    # The triggers of `orders` and `audit` have one key from the provider, so they share one consumer.
    assert watchers["orders"]["stream"] == watchers["audit"]["stream"]
    assert watchers["queue"]["stream"] != watchers["orders"]["stream"]
    service.send(service.topic, "one", "two")
    service.send(service.queue, "hello")
    for asset in ("orders", "audit"):
        service.until_events(asset, ["one", "two"])
    service.until_events("queue", ["hello"])
    wait_until(lambda: service.committed() == 2, within_s=30, what="both are committed", of=service)

    def has_run() -> bool:
        runs = service.json("runs", "list", "--dag", "on_orders")
        return bool(runs) and {run["state"] for run in runs} == {"success"}

    wait_until(has_run, within_s=STARTS_WITHIN_S, what="the DAG that waits has run", of=service)


def test_what_comes_while_the_standalone_is_away_fires_when_it_is_back_and_nothing_twice(
    service: Service,
) -> None:
    service.until_watching()
    service.send(service.topic, "before")
    service.until_events("orders", ["before"])
    assert service.stop() == 0
    assert service.orphans() == []
    assert service.committed() == 1
    service.send(service.topic, "away 1", "away 2")
    service.start()
    service.until_events("orders", ["before", "away 1", "away 2"])
    service.until_events("audit", ["before", "away 1", "away 2"])
    # Wait long enough to see the second event of a message that comes twice.
    time.sleep(2)
    assert service.events("orders") == ["before", "away 1", "away 2"]
