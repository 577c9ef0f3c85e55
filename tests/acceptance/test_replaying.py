"""A watcher of a topic is set back by a command, while another one of the topic and the broker notice nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.instance import Instance, wait_until
from tests.acceptance.records import Records
from tests.services.kafka import KafkaServer

WATCHERS = """
from pathlib import Path
import anyio
from triggerer import DAG, Asset, AssetWatcher, task
from watchers.kafka import KafkaEventTrigger

class Slow(KafkaEventTrigger):
    def serialize(self):
        return f"{{__name__}}.{{type(self).__name__}}", super().serialize()[1]

    async def filter_shared_stream(self, shared_stream):
        async for event in super().filter_shared_stream(shared_stream):
            if Path("{slow}").exists():
                await anyio.sleep(0.01)
            yield event

assets = [
    Asset(f"x-test://{{name}}", watchers=[AssetWatcher("w", cls("{topic}"))])
    for name, cls in dict(one=Slow, other=KafkaEventTrigger).items()
]

with DAG("on_both", schedule=assets, is_paused_upon_creation=True):

    @task
    def count(triggering_asset_events):
        return len(triggering_asset_events)

    count()
"""
COUNTS = (
    "SELECT a.name, count(*), count(DISTINCT e.idempotency_key) FROM asset_event e"
    " JOIN asset a ON a.id = e.asset_id GROUP BY a.name"
)
AGAIN = "SELECT count(*) FROM asset_event WHERE idempotency_key LIKE '%#r%'"


class Scene:
    """A service with two watchers of one topic, of which one is slow while a file exists."""

    def __init__(self, folder: Path, url: str, kafka: KafkaServer, topic: str) -> None:
        self.kafka, self.topic = kafka, topic
        self.slow = folder / "slow"
        dags = folder / "dags"
        dags.mkdir()
        (dags / "watching.py").write_text(WATCHERS.format(slow=self.slow, topic=topic))
        self.records = Records(url)
        self.instance = Instance(
            folder / "home",
            dags_folder=dags,
            database_url=url,
            bootstrap=kafka.bootstrap_servers,
        )

    def produce(self, number: int) -> None:
        self.kafka.produce(self.topic, [str(value) for value in range(number)])

    def counts(self) -> dict[str, tuple[int, int]]:
        """By asset the events, and how many keys they have."""
        return {
            name.removeprefix("x-test://"): (events, keys)
            for name, events, keys in self.records.rows(COUNTS)
        }

    def until_counted(self, within_s: float = 120, **wanted: int) -> None:
        wait_until(
            lambda: all(self.counts().get(name) == (n, n) for name, n in wanted.items()),
            within_s=within_s,
            what=f"{wanted}, not {self.counts()}",
            of=self.instance,
        )

    def until_nobody_is_behind(self) -> None:
        wait_until(
            lambda: (
                self.records.rows("SELECT count(*) FROM watcher_replay") == [(0,)]
                and self.records.rows("SELECT count(*) FROM watcher_position") == [(0,)]
                and self.records.rows("SELECT DISTINCT state FROM watcher") == [("running",)]
            ),
            within_s=60,
            what="all run, and nothing is left of a replay",
            of=self.instance,
        )

    def replay(self, *arguments: str) -> None:
        self.instance.cli("watchers", "replay", "x-test://one/w", *arguments)


@pytest.fixture(params=["sqlite", "postgresql"])
def scene(
    request: pytest.FixtureRequest, tmp_path: Path, kafka_server: KafkaServer
) -> Iterator[Scene]:
    topic = f"replayed-{request.param}"
    kafka_server.create_topic(topic, partitions=4)
    url = (
        f"sqlite+aiosqlite:///{tmp_path / 'home' / 'store.sqlite'}"
        if request.param == "sqlite"
        else request.getfixturevalue("empty_postgres_url")
    )
    scene = Scene(tmp_path, url, kafka_server, topic)
    yield scene
    if scene.instance.is_running:
        scene.instance.kill()


@pytest.mark.rule("18: events that exist are not made again")
@pytest.mark.rule("18: with `--again` each is made once more, whoever dies")
def test_a_replay_makes_what_it_is_to_make_and_nothing_twice(scene: Scene) -> None:
    scene.instance.start()
    wait_until(
        lambda: scene.records.holds("SELECT count(*) = 2 FROM watcher WHERE state = 'running'"),
        within_s=60,
        what="both watchers run",
        of=scene.instance,
    )
    scene.produce(1_000)
    scene.until_counted(one=1_000, other=1_000)
    # Without --again what exists is absorbed, and what is new comes once.
    scene.replay("--from", "earliest")
    scene.produce(200)
    scene.until_counted(one=1_200, other=1_200)
    scene.until_nobody_is_behind()
    # With it each message has one event more, whoever dies in the middle.
    scene.slow.touch()
    scene.replay("--from", "earliest", "--again")
    wait_until(
        lambda: scene.records.rows(AGAIN)[0][0] >= 100,
        within_s=60,
        what="some events are made again",
        of=scene.instance,
    )
    scene.instance.kill()
    made = scene.records.rows(AGAIN)[0][0]
    assert 100 <= made < 1_200
    scene.produce(100)
    scene.slow.unlink()
    scene.instance.start()
    scene.until_counted(one=2_500, other=1_300)
    scene.until_nobody_is_behind()
    assert scene.records.rows(AGAIN) == [(1_200,)]
    scene.produce(10)
    scene.until_counted(one=2_510, other=1_310)
    scene.until_nobody_is_behind()
    at_each = scene.records.positions()
    assert set(at_each["x-test://other"].values()) == {1}
    assert sorted(set(at_each["x-test://one"].values())) == [1, 2]
