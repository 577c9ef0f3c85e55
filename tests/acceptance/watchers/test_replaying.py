"""A command sets one of a topic's two watchers back. The other watcher and the broker notice nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.instance import wait_until
from tests.acceptance.watching import WatchingScene
from tests.services.brokers.kafka import KafkaServer

SLOW = """
class Slow(Ours):
    async def filter_shared_stream(self, shared_stream):
        async for event in super().filter_shared_stream(shared_stream):
            if Path("{slow}").exists():
                await anyio.sleep(0.01)
            yield event
"""
AGAIN = "SELECT count(*) FROM asset_event WHERE idempotency_key LIKE '%#r%'"


class Scene(WatchingScene):
    """Two watchers. One of them is slow while a file exists."""

    def __init__(self, folder: Path, url: str, kafka: KafkaServer) -> None:
        self.slow = folder / "slow"
        super().__init__(
            folder,
            url,
            kafka,
            "replayed",
            partitions=4,
            classes=SLOW.format(slow=self.slow),
            names={"one": "Slow", "other": "KafkaEventTrigger"},
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


@pytest.fixture
def scene(tmp_path: Path, empty_store_url: str, kafka_server: KafkaServer) -> Iterator[Scene]:
    scene = Scene(tmp_path, empty_store_url, kafka_server)
    yield scene
    scene.kill()


@pytest.mark.rule("18: a replay makes no event that exists already")
@pytest.mark.rule("18: with `--again` a replay makes each event again, even through crashes")
@pytest.mark.parametrize(
    "empty_store_url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)], indirect=True
)
def test_a_replay_makes_what_it_is_to_make_and_nothing_twice(scene: Scene) -> None:
    scene.start()
    scene.produce(1_000)
    scene.until_counted(one=1_000, other=1_000)
    # Without --again, messages that have events make no further ones, and new messages make one event each.
    scene.replay("--from", "earliest")
    scene.produce(200)
    scene.until_counted(one=1_200, other=1_200)
    scene.until_nobody_is_behind()
    # With --again each message has one more event, even if a process dies in the middle.
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
