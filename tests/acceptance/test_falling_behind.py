"""Watchers of one topic of which some are sick: the others lose nothing and wait for nothing, and the sick catch up."""

from __future__ import annotations

import json
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

SICK = Path("{sick}")

class Sick(KafkaEventTrigger):
    def serialize(self):
        return f"{{__name__}}.{{type(self).__name__}}", super().serialize()[1]

class Raising(Sick):
    async def filter_shared_stream(self, shared_stream):
        async for event in super().filter_shared_stream(shared_stream):
            if SICK.exists():
                raise RuntimeError("cannot take this")
            yield event

class Hanging(Sick):
    async def filter_shared_stream(self, shared_stream):
        async for event in super().filter_shared_stream(shared_stream):
            while SICK.exists():
                await anyio.sleep(0.2)
            yield event

class Slow(Sick):
    async def filter_shared_stream(self, shared_stream):
        async for event in super().filter_shared_stream(shared_stream):
            if SICK.exists():
                await anyio.sleep(0.05)
            yield event

class Absent(Sick):
    def __init__(self, *args, **kwargs):
        if SICK.exists() and Path("{hosting}").exists():
            raise RuntimeError("cannot be made")
        super().__init__(*args, **kwargs)

assets = [
    Asset(f"x-test://{{name}}", watchers=[AssetWatcher("w", cls("{topic}"))])
    for name, cls in dict(
        well=KafkaEventTrigger, raising=Raising, hanging=Hanging, slow=Slow, absent=Absent
    ).items()
]

with DAG("on_all", schedule=assets, is_paused_upon_creation=True):

    @task
    def count(triggering_asset_events):
        return len(triggering_asset_events)

    count()
"""
SICK = ("raising", "hanging", "slow", "absent")
COUNTS = (
    "SELECT a.name, count(*), count(DISTINCT e.idempotency_key) FROM asset_event e"
    " JOIN asset a ON a.id = e.asset_id GROUP BY a.name"
)
ORDER = (
    "SELECT e.extra FROM asset_event e JOIN asset a ON a.id = e.asset_id"
    " WHERE a.name = 'x-test://{name}' ORDER BY e.id"
)


class Scene:
    """A service with five watchers of one topic, four of which are sick while a file exists."""

    def __init__(self, folder: Path, url: str, kafka: KafkaServer, topic: str) -> None:
        self.kafka, self.topic = kafka, topic
        self.sick, self.hosting = folder / "sick", folder / "hosting"
        dags = folder / "dags"
        dags.mkdir()
        (dags / "watching.py").write_text(
            WATCHERS.format(sick=self.sick, hosting=self.hosting, topic=topic)
        )
        self.records = Records(url)
        self.instance = Instance(
            folder / "home",
            dags_folder=dags,
            database_url=url,
            bootstrap=kafka.bootstrap_servers,
            settings="[triggerer]\nshared_stream_subscriber_queue_size = 100\n",
        )

    def counts(self) -> dict[str, tuple[int, int]]:
        return {
            name.removeprefix("x-test://"): (events, messages)
            for name, events, messages in self.records.rows(COUNTS)
        }

    def until_counted(self, within_s: float = 120, **wanted: int) -> None:
        wait_until(
            lambda: all(self.counts().get(name) == (n, n) for name, n in wanted.items()),
            within_s=within_s,
            what=f"{wanted}, not {self.counts()}",
            of=self.instance,
        )

    def states(self) -> dict[str, str]:
        return {
            name.removeprefix("x-test://"): state
            for name, state in self.records.rows(
                "SELECT a.name, w.state FROM watcher w JOIN asset a ON a.id = w.asset_id"
            )
        }

    def order(self, name: str) -> list[tuple[int, int]]:
        extras = [extra for (extra,) in self.records.rows(ORDER.format(name=name))]
        extras = [json.loads(extra) if isinstance(extra, str) else extra for extra in extras]
        return [(extra["partition"], extra["offset"]) for extra in extras]


@pytest.fixture(params=["sqlite", "postgresql"])
def scene(
    request: pytest.FixtureRequest, tmp_path: Path, kafka_server: KafkaServer
) -> Iterator[Scene]:
    topic = f"sick-{request.param}"
    kafka_server.create_topic(topic, partitions=4)
    url = (
        f"sqlite+aiosqlite:///{tmp_path / 'home' / 'store.sqlite'}"
        if request.param == "sqlite"
        else request.getfixturevalue("empty_postgres_url")
    )
    scene = Scene(tmp_path, url, kafka_server, topic)
    scene.sick.touch()
    yield scene
    if scene.instance.is_running:
        scene.instance.kill()


@pytest.mark.rule(
    "18: siblings go on, and the broker is advanced",
    "one watcher times out: the delivery is repeated for its siblings",
)
def test_the_sick_harm_nobody_and_miss_nothing(scene: Scene) -> None:
    scene.instance.start()
    wait_until(
        lambda: scene.records.holds("SELECT count(*) = 5 FROM watcher WHERE state = 'running'"),
        within_s=60,
        what="five watchers run",
        of=scene.instance,
    )
    scene.hosting.touch()
    scene.kafka.produce(scene.topic, [str(number) for number in range(1_000)])
    scene.until_counted(well=1_000, within_s=30)
    wait_until(
        lambda: scene.states().get("raising") == "failing",
        within_s=30,
        what="the one that raises is shown as failing",
        of=scene.instance,
    )
    scene.kafka.produce(scene.topic, [str(number) for number in range(500)])
    scene.until_counted(well=1_500, within_s=30)
    scene.instance.kill()
    scene.instance.start()
    scene.kafka.produce(scene.topic, [str(number) for number in range(500)])
    scene.until_counted(well=2_000, within_s=60)
    scene.sick.unlink()
    scene.until_counted(well=2_000, **dict.fromkeys(SICK, 2_000))
    scene.kafka.produce(scene.topic, [str(number) for number in range(100)])
    scene.until_counted(well=2_100, **dict.fromkeys(SICK, 2_100))
    for name in ("well", *SICK):
        order = scene.order(name)
        for partition in range(4):
            offsets = [offset for at, offset in order if at == partition]
            assert offsets == sorted(offsets), name
    wait_until(
        lambda: set(scene.states().values()) == {"running"},
        within_s=60,
        what=f"all run, not {scene.states()}",
        of=scene.instance,
    )
    wait_until(
        lambda: scene.records.rows("SELECT count(*) FROM watcher_position") == [(0,)],
        within_s=60,
        what="nobody is behind",
        of=scene.instance,
    )
