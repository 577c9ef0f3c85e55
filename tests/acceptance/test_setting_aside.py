"""A message that one of two watchers cannot take: set aside, looked at, and replayed from the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.instance import Instance, wait_until
from tests.acceptance.records import Records
from tests.services.kafka import KafkaServer

WATCHERS = """
from pathlib import Path
from triggerer import DAG, Asset, AssetWatcher, task
from watchers.kafka import KafkaEventTrigger

MENDED = Path("{mended}")

class Picky(KafkaEventTrigger):
    def serialize(self):
        return f"{{__name__}}.{{type(self).__name__}}", super().serialize()[1]

    async def filter_shared_stream(self, shared_stream):
        async for event in super().filter_shared_stream(shared_stream):
            if "poison" in event.payload["value"] and not MENDED.exists():
                raise ValueError("cannot take " + event.payload["value"])
            yield event

assets = [
    Asset(f"x-test://{{name}}", watchers=[AssetWatcher("w", cls("{topic}"))])
    for name, cls in dict(well=KafkaEventTrigger, picky=Picky).items()
]

with DAG("on_all", schedule=assets, is_paused_upon_creation=True):

    @task
    def count(triggering_asset_events):
        return len(triggering_asset_events)

    count()
"""


class Scene:
    def __init__(self, folder: Path, url: str, kafka: KafkaServer, topic: str) -> None:
        self.kafka, self.topic = kafka, topic
        self.mended = folder / "mended"
        dags = folder / "dags"
        dags.mkdir()
        (dags / "watching.py").write_text(WATCHERS.format(mended=self.mended, topic=topic))
        self.records = Records(url)
        self.instance = Instance(
            folder / "home",
            dags_folder=dags,
            database_url=url,
            bootstrap=kafka.bootstrap_servers,
            settings="[triggerer]\nmax_deliveries = 3\n",
        )

    def events(self, name: str) -> int:
        query = (
            "SELECT count(*) FROM asset_event e JOIN asset a ON a.id = e.asset_id"
            f" WHERE a.name = 'x-test://{name}'"
        )
        ((number,),) = self.records.rows(query)
        return int(number)

    def until(self, what: str, **wanted: int) -> None:
        wait_until(
            lambda: {name: self.events(name) for name in wanted} == wanted,
            within_s=60,
            what=what,
            of=self.instance,
        )

    def parked(self, *arguments: str) -> Any:
        return json.loads(self.instance.cli("watchers", "parked", *arguments, "--json"))


@pytest.fixture(params=["sqlite", "postgresql"])
def scene(
    request: pytest.FixtureRequest, tmp_path: Path, kafka_server: KafkaServer
) -> Iterator[Scene]:
    topic = f"poison-{request.param}"
    kafka_server.create_topic(topic, partitions=1)
    url = (
        f"sqlite+aiosqlite:///{tmp_path / 'home' / 'store.sqlite'}"
        if request.param == "sqlite"
        else request.getfixturevalue("empty_postgres_url")
    )
    scene = Scene(tmp_path, url, kafka_server, topic)
    yield scene
    if scene.instance.is_running:
        scene.instance.kill()


@pytest.mark.rule("18: a message that alone cannot be taken is set aside")
def test_a_poison_message_is_set_aside_shown_and_replayed(scene: Scene) -> None:
    scene.instance.start()
    wait_until(
        lambda: scene.records.holds("SELECT count(*) = 2 FROM watcher WHERE state = 'running'"),
        within_s=60,
        what="both watchers run",
        of=scene.instance,
    )
    scene.kafka.produce(scene.topic, ['"a"', '"poison 1"', '"b"', '"poison 2"', '"c"'])
    scene.until("the healthy one has all", well=5)
    scene.until("the other has all that it can take", picky=3)
    wait_until(lambda: len(scene.parked("list")) == 2, within_s=60, what="two are set aside")
    first, second = scene.parked("list")
    assert (first["asset_name"], first["watcher"], first["state"]) == (
        "x-test://picky",
        "w",
        "set_aside",
    )
    assert first["failures"] == 4
    assert first["error"] == "ValueError: cannot take poison 1"
    shown = scene.parked("show", str(first["id"]))
    assert "raise ValueError" in shown["traceback"]
    assert "poison 1" in shown["message"]
    assert shown["size_bytes"] > 0

    scene.mended.touch()
    scene.instance.kill()
    assert scene.parked("replay", str(first["id"])) == {"replayed": 1}
    scene.instance.start()
    scene.until("the replayed message was taken", picky=4)
    assert scene.parked("replay", "--watcher", "x-test://picky/w") == {"replayed": 1}
    scene.until("so was the other", well=5, picky=5)
    wait_until(lambda: scene.parked("list") == [], within_s=60, what="nothing is parked")
    scene.kafka.produce(scene.topic, ['"d"'])
    scene.until("it goes on", well=6, picky=6)
    assert second["id"] > first["id"]
