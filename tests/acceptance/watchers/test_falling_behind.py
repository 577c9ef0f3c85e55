"""Some watchers of one topic are sick. The others lose nothing and wait for nothing, and the sick watchers catch up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.instance import wait_until
from tests.acceptance.watching import WatchingScene
from tests.services.brokers.kafka import KafkaServer

CLASSES = """
SICK = Path("{sick}")

class Raising(Ours):
    async def filter_shared_stream(self, shared_stream):
        async for event in super().filter_shared_stream(shared_stream):
            if SICK.exists():
                raise RuntimeError("cannot take this")
            yield event

class Hanging(Ours):
    async def filter_shared_stream(self, shared_stream):
        async for event in super().filter_shared_stream(shared_stream):
            while SICK.exists():
                await anyio.sleep(0.2)
            yield event

class Slow(Ours):
    async def filter_shared_stream(self, shared_stream):
        async for event in super().filter_shared_stream(shared_stream):
            if SICK.exists():
                await anyio.sleep(0.05)
            yield event

class Absent(Ours):
    def __init__(self, *args, **kwargs):
        if SICK.exists() and Path("{hosting}").exists():
            raise RuntimeError("cannot be made")
        super().__init__(*args, **kwargs)
"""
SICK = ("raising", "hanging", "slow", "absent")
ORDER = (
    "SELECT e.extra FROM asset_event e JOIN asset a ON a.id = e.asset_id"
    " WHERE a.name = 'x-test://{name}' ORDER BY e.id"
)


class Scene(WatchingScene):
    """Five watchers. Four of them are sick while a file exists."""

    def __init__(self, folder: Path, url: str, kafka: KafkaServer) -> None:
        self.sick, self.hosting = folder / "sick", folder / "hosting"
        self.sick.touch()
        super().__init__(
            folder,
            url,
            kafka,
            "sick",
            partitions=4,
            classes=CLASSES.format(sick=self.sick, hosting=self.hosting),
            names={"well": "KafkaEventTrigger"} | {name: name.capitalize() for name in SICK},
            settings="[triggerer]\nshared_stream_subscriber_queue_size = 100\n",
        )

    def states(self) -> dict[str, str]:
        return {
            name.removeprefix("x-test://"): state
            for name, state in self.records.rows(
                "SELECT a.name, w.state FROM watcher w JOIN asset a ON a.id = w.asset_id"
            )
        }

    def until_shown(self, name: str, *, state: str, least_behind: int, error: str) -> None:
        """Wait until `watchers show` reports the state, the error, and at least `least_behind` missed messages.

        The number of missed messages must be the sum over the watcher's positions.
        """

        def is_shown() -> bool:
            shown = json.loads(
                self.instance.cli("watchers", "show", f"x-test://{name}", "w", "--json")
            )
            return (
                (shown["state"], shown["set_aside"]) == (state, 0)
                and (shown["behind"] or 0) >= least_behind
                and shown["behind_since"] is not None
                and error in shown["error"]
                and error in shown["traceback"]
                and shown["behind"] == sum(one["behind"] for one in shown["positions"])
            )

        wait_until(is_shown, within_s=60, what=f"{name} is shown as behind", of=self.instance)

    def order(self, name: str) -> list[tuple[int, int]]:
        extras = [extra for (extra,) in self.records.rows(ORDER.format(name=name))]
        extras = [json.loads(extra) if isinstance(extra, str) else extra for extra in extras]
        return [(extra["partition"], extra["offset"]) for extra in extras]


@pytest.fixture
def scene(tmp_path: Path, empty_store_url: str, kafka_server: KafkaServer) -> Iterator[Scene]:
    scene = Scene(tmp_path, empty_store_url, kafka_server)
    yield scene
    scene.kill()


@pytest.mark.rule("18: while a watcher is behind, its siblings continue and the broker advances")
@pytest.mark.parametrize(
    "empty_store_url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)], indirect=True
)
def test_the_sick_harm_nobody_and_miss_nothing(scene: Scene) -> None:
    scene.start()
    scene.hosting.touch()
    scene.produce(1_000)
    scene.until_counted(well=1_000, within_s=30)
    wait_until(
        lambda: scene.states().get("raising") == "failing",
        within_s=30,
        what="the one that raises is shown as failing",
        of=scene.instance,
    )
    scene.produce(500)
    scene.until_counted(well=1_500, within_s=30)
    scene.until_shown("raising", state="failing", least_behind=1_500, error="cannot take this")
    scene.instance.kill()
    scene.instance.start()
    scene.produce(500)
    scene.until_counted(well=2_000, within_s=60)
    scene.until_shown("absent", state="failing", least_behind=500, error="cannot be made")
    scene.sick.unlink()
    scene.until_counted(well=2_000, **dict.fromkeys(SICK, 2_000))
    scene.produce(100)
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
