"""A message that one of two watchers cannot take is parked. Commands show the message, and replay it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.instance import wait_until
from tests.acceptance.watching import WatchingScene
from tests.services.brokers.kafka import KafkaServer

PICKY = """
class Picky(Ours):
    async def filter_shared_stream(self, shared_stream):
        async for event in super().filter_shared_stream(shared_stream):
            if "poison" in event.payload["value"] and not Path("{mended}").exists():
                raise ValueError("cannot take " + event.payload["value"])
            yield event
"""


class Scene(WatchingScene):
    """Two watchers. One of them fails some messages until a file exists."""

    def __init__(self, folder: Path, url: str, kafka: KafkaServer) -> None:
        self.mended = folder / "mended"
        super().__init__(
            folder,
            url,
            kafka,
            "poison",
            partitions=1,
            classes=PICKY.format(mended=self.mended),
            names={"well": "KafkaEventTrigger", "picky": "Picky"},
            settings="[triggerer]\nmax_deliveries = 3\n",
        )

    def parked(self, *arguments: str) -> Any:
        return json.loads(self.instance.cli("watchers", "parked", *arguments, "--json"))


@pytest.fixture
def scene(tmp_path: Path, empty_store_url: str, kafka_server: KafkaServer) -> Iterator[Scene]:
    scene = Scene(tmp_path, empty_store_url, kafka_server)
    yield scene
    scene.kill()


@pytest.mark.rule("18: a message that fails again and again is parked, if other messages pass")
@pytest.mark.parametrize(
    "empty_store_url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)], indirect=True
)
def test_a_poison_message_is_set_aside_shown_and_replayed(scene: Scene) -> None:
    scene.start()
    scene.kafka.produce(scene.topic, ['"a"', '"poison 1"', '"b"', '"poison 2"', '"c"'])
    scene.until_counted(well=5)
    scene.until_counted(picky=3)
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
    scene.until_counted(picky=4)
    assert scene.parked("replay", "--watcher", "x-test://picky/w") == {"replayed": 1}
    scene.until_counted(well=5, picky=5)
    wait_until(lambda: scene.parked("list") == [], within_s=60, what="nothing is parked")
    scene.kafka.produce(scene.topic, ['"d"'])
    scene.until_counted(well=6, picky=6)
    assert second["id"] > first["id"]
