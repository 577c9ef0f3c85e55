"""Nothing lost, nothing twice: a real broker, a real database, and everything killed now and then.

`make soak` runs these in full; `make test` runs a share of them and says so.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest

from tests.acceptance.instance import Instance, wait_until
from tests.acceptance.records import Records, conservation
from tests.services.kafka import KafkaServer
from tests.services.postgres import PostgresServer

PARTITIONS = 8

DAGS = '''
"""Four watchers on one topic, in two consumer groups: two streams, so that two instances can share them."""

from collections.abc import AsyncIterator
from pathlib import Path

from triggerer import DAG, Asset, AssetWatcher, task
from watchers.kafka import KafkaEventTrigger

TROUBLE = Path("{trouble}")


class Flaky(KafkaEventTrigger):
    """Raises on some messages for as long as a file is there."""

    def serialize(self):
        return f"{{__name__}}.Flaky", super().serialize()[1]

    async def filter_shared_stream(self, shared_stream):
        async def raising():
            async for message in shared_stream:
                if message.record.offset % 211 == 7 and TROUBLE.exists():
                    raise RuntimeError(f"trouble at {{message!r}}")
                yield message

        async for event in super().filter_shared_stream(raising()):
            yield event


def watched(name, trigger):
    return Asset(name=name, uri=f"x-soak://{{name}}", watchers=[AssetWatcher(name, trigger)])


first, second = "{topic}-one", "{topic}-two"
everything = watched("everything", KafkaEventTrigger("{topic}", group_id=first))
evens = watched("evens", Flaky("{topic}", group_id=first, match={{"parity": 0}}))
thirds = watched("thirds", KafkaEventTrigger("{topic}", group_id=second, match={{"third": 0}}))
again = watched("again", KafkaEventTrigger("{topic}", group_id=second))

for asset in (everything, evens, thirds, again):
    with DAG(f"on_{{asset.name}}", schedule=asset):

        @task
        def count(triggering_asset_events):
            return sum(len(events) for events in triggering_asset_events.values())

        count()
'''


@dataclass(frozen=True, slots=True)
class Plan:
    messages: int
    kills: int
    broker_restarts: int
    store_outage_s: float
    flaky_s: float
    patience_s: float


SHARE = Plan(20_000, kills=2, broker_restarts=1, store_outage_s=4, flaky_s=3, patience_s=150)
FULL = Plan(200_000, kills=10, broker_restarts=2, store_outage_s=20, flaky_s=20, patience_s=900)


@pytest.fixture
def plan(request: pytest.FixtureRequest) -> Plan:
    is_full = request.node.get_closest_marker("soak") is not None
    chosen = FULL if is_full else SHARE
    print(
        f"{'the full proof' if is_full else 'a share of the proof; the rest: make soak'}: {chosen}"
    )
    return chosen


class Scene:
    """A topic, a database, one or two instances, and what is done to them."""

    def __init__(self, plan: Plan, kafka: KafkaServer, folder: Path, url: str, seed: int) -> None:
        self.plan = plan
        self.kafka = kafka
        self.url = url
        self.random = random.Random(seed)
        self.topic = f"soak-{seed:x}"
        self.trouble = folder / "trouble"
        self.records = Records(url)
        dags = folder / "dags"
        dags.mkdir()
        (dags / "soak.py").write_text(DAGS.format(trouble=self.trouble, topic=self.topic))
        self._folder = folder
        self._dags = dags
        self.first = self.instance("first")
        self.sent: dict[int, list[dict[str, int]]] = {p: [] for p in range(PARTITIONS)}
        kafka.create_topic(self.topic, PARTITIONS)

    def instance(self, name: str) -> Instance:
        return Instance(
            self._folder / name,
            dags_folder=self._dags,
            database_url=self.url,
            bootstrap=self.kafka.bootstrap_servers,
        )

    def publish(self, count: int) -> None:
        """Write the next `count` messages, spread over the partitions."""
        start = sum(map(len, self.sent.values()))
        batches: dict[int, list[bytes]] = {p: [] for p in range(PARTITIONS)}
        for n in range(start, start + count):
            message = {"n": n, "parity": n % 2, "third": n % 3}
            partition = self.random.randrange(PARTITIONS)
            self.sent[partition].append(message)
            batches[partition].append(orjson.dumps(message))
        for partition, values in batches.items():
            self.kafka.produce(self.topic, values, partition=partition)

    def pause(self) -> None:
        time.sleep(self.random.uniform(0.5, 3.0))

    def kill_and_restart(self) -> None:
        self.first.kill()
        assert self.first.orphans() == []
        self.first.start()

    def restart_broker(self) -> None:
        self.random.choice((self.kafka.stop, self.kafka.kill))()
        time.sleep(self.random.uniform(0.5, 2.0))
        self.kafka.start()

    def expected(self) -> dict[str, Counter[tuple[int, int]]]:
        """(partition, offset) of what each asset has to have, once each."""
        wanted: dict[str, Callable[[dict[str, int]], bool]] = {
            "everything": lambda message: True,
            "again": lambda message: True,
            "evens": lambda message: message["parity"] == 0,
            "thirds": lambda message: message["third"] == 0,
        }
        return {
            name: Counter(
                (partition, offset)
                for partition, messages in self.sent.items()
                for offset, message in enumerate(messages)
                if matches(message)
            )
            for name, matches in wanted.items()
        }

    def check(self) -> None:
        """Wait until all has come through, then count everything."""
        groups = [f"{self.topic}-one", f"{self.topic}-two"]
        ends = {p: len(messages) for p, messages in self.sent.items()}
        assert self.kafka.end_offsets(self.topic) == ends
        for group in groups:
            wait_until(
                lambda group=group: self.kafka.committed_offsets(group, self.topic) == ends,  # type: ignore[misc]
                within_s=self.plan.patience_s,
                what=f"{group} has committed everything",
                of=self.first,
                every_s=1.0,
            )
        expected = self.expected()
        assert self.records.positions() == expected
        wait_until(
            lambda: (now := conservation(self.records)).queued == 0 and now.active_runs == 0,
            within_s=self.plan.patience_s,
            what="all events are in runs that ended",
            of=self.first,
            every_s=0.5,
        )
        total = sum(counter.total() for counter in expected.values())
        counts = conservation(self.records)
        print(f"{total} asset events of {sum(ends.values())} messages: {counts}")
        assert (counts.events, counts.taken, counts.failed_runs) == (total, total, 0)


@pytest.fixture
def seed() -> int:
    chosen = int(os.environ.get("TRIGGERER_SEED") or random.SystemRandom().randrange(2**32))
    print(f"repeat with TRIGGERER_SEED={chosen}")
    return chosen


@pytest.fixture(scope="session")
def postgres_server(durable_postgres_server: PostgresServer) -> PostgresServer:
    return durable_postgres_server


@pytest.fixture
def scene(
    plan: Plan, kafka_server: KafkaServer, tmp_path: Path, empty_store_url: str, seed: int
) -> Iterator[Scene]:
    scene = Scene(plan, kafka_server, tmp_path, empty_store_url, seed)
    yield scene
    if scene.first.is_running:
        scene.first.kill()


def _disturb_store(scene: Scene, request: pytest.FixtureRequest) -> None:
    """PostgreSQL is stopped and started again; SQLite is locked by another writer."""
    if scene.url.startswith("sqlite"):
        connection = sqlite3.connect(scene.url.split("///", 1)[1], timeout=60)
        connection.execute("BEGIN IMMEDIATE")
        time.sleep(scene.plan.store_outage_s)
        connection.rollback()
        connection.close()
    else:
        postgres: PostgresServer = request.getfixturevalue("postgres_server")
        postgres.stop()
        time.sleep(scene.plan.store_outage_s)
        postgres.start()


def _share_with_second_instance(scene: Scene) -> None:
    """A second instance joins, takes over when the first dies, and leaves when that is back."""
    second = scene.instance("second")
    second.start()
    owners = "SELECT count(DISTINCT owner) FROM stream WHERE owner IS NOT NULL"
    try:
        wait_until(
            lambda: scene.records.value(owners) == 2,
            within_s=60,
            what="both instances own a stream",
            of=second,
        )
        scene.first.kill()
        scene.publish(scene.plan.messages // 20)
        wait_until(
            lambda: scene.records.value(owners) == 1,
            within_s=60,
            what="the second has taken over",
            of=second,
        )
        scene.first.start()
        wait_until(
            lambda: scene.records.value(owners) == 2,
            within_s=60,
            what="the first has its share again",
            of=scene.first,
        )
        assert second.stop() == 0
        assert second.orphans() == []
    finally:
        if second.is_running:
            second.kill()


def _prove(scene: Scene, request: pytest.FixtureRequest) -> None:
    plan = scene.plan
    # A share of the messages is there before anybody watches; the rest comes between the disturbances.
    scene.publish(plan.messages // 4)
    scene.first.start()
    acts: list[Callable[[], None]] = [scene.kill_and_restart] * plan.kills
    acts += [scene.restart_broker] * plan.broker_restarts
    acts.append(lambda: _disturb_store(scene, request))
    scene.random.shuffle(acts)
    if not scene.url.startswith("sqlite"):
        acts.insert(len(acts) // 2, lambda: _share_with_second_instance(scene))
    slices = plan.messages // 2 // len(acts)
    scene.trouble.touch()
    timer = threading.Timer(plan.flaky_s, scene.trouble.unlink)
    timer.start()
    for act in acts:
        scene.publish(slices)
        scene.pause()
        act()
    timer.join()
    scene.publish(plan.messages - sum(map(len, scene.sent.values())))
    scene.check()
    assert scene.first.stop() == 0, scene.first.tail()
    assert scene.first.orphans() == []


@pytest.mark.rule("S1, S2, S4: whole processes, killed")
@pytest.mark.timeout(600)
def test_each_message_becomes_one_event_of_each_watcher_in_one_run(
    scene: Scene, request: pytest.FixtureRequest
) -> None:
    _prove(scene, request)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_each_of_200_000_messages_becomes_one_event_of_each_watcher_in_one_run(
    scene: Scene, request: pytest.FixtureRequest
) -> None:
    _prove(scene, request)
