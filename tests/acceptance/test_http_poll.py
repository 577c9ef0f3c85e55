"""A URL that is polled, by the whole service: killed between the commit of the events and what follows it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.instance import Instance, wait_until
from tests.acceptance.records import Records
from tests.http.server import Server, serving

WATCHERS = """
import os
import signal
from pathlib import Path
from triggerer import Asset, AssetWatcher
from producers.http import HttpSharedStreamProducer
from triggerer import SharedStreamProducer
from watchers.http import HttpPollTrigger

KILL = Path("{kill}")

class Dying(HttpSharedStreamProducer):
    if not {ahead}:
        state_after = SharedStreamProducer.state_after

    # The events of the batch are durable. So is the place that passes them, if it was told ahead.
    async def advance(self, batch):
        if KILL.exists():
            KILL.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        await super().advance(batch)

class Watching(HttpPollTrigger):
    def serialize(self):
        return f"{{__name__}}.{{type(self).__name__}}", super().serialize()[1]

    @classmethod
    def create_shared_stream_producer(cls, kwargs):
        trigger = cls(**kwargs)
        return Dying(trigger._polled(), settings=trigger._settings(), connection="http")

orders = Asset("x-test://orders", watchers=[
    AssetWatcher("w", Watching(
        "orders", poke_interval=0.1, items="@value", item_key="id"), guarantee="effectively_once"),
])
"""


class Scene:
    def __init__(self, folder: Path, url: str, server: Server, *, ahead: bool) -> None:
        self.server = server
        self.ahead = ahead
        self.kill = folder / "kill"
        dags = folder / "dags"
        dags.mkdir()
        self.dag = dags / "watching.py"
        self.dag.write_text(WATCHERS.format(kill=self.kill, ahead=ahead))
        self.records = Records(url)
        self.instance = Instance(
            folder / "home",
            dags_folder=dags,
            database_url=url,
            bootstrap="127.0.0.1:9",
            settings=f'[connections.http]\nbase_url = "{server.url}"\n'
            "[dag_processor]\nmin_file_process_interval = 1\nremoval_grace = 0\n",
        )

    def ids(self) -> list[int]:
        rows = self.records.rows("SELECT extra FROM asset_event ORDER BY id")
        extras = [json.loads(row[0]) if isinstance(row[0], str) else row[0] for row in rows]
        return [extra["value"]["id"] for extra in extras]

    def states(self) -> list[int]:
        rows = self.records.rows("SELECT value FROM stream_state")
        values = [json.loads(row[0]) if isinstance(row[0], str) else row[0] for row in rows]
        return [len(value["known"]) for value in values]

    def until_ids(self, expected: list[int]) -> None:
        what = f"events of {expected}"
        wait_until(lambda: self.ids() == expected, within_s=60, what=what, of=self.instance)

    def until_states(self, expected: list[int]) -> None:
        what = f"states {expected}"
        wait_until(lambda: self.states() == expected, within_s=60, what=what, of=self.instance)


@pytest.fixture(params=[True, False], ids=["with the events", "after the events"])
def scene(request: pytest.FixtureRequest, tmp_path: Path, sqlite_url: str) -> Iterator[Scene]:
    with serving() as server:
        scene = Scene(tmp_path, sqlite_url, server, ahead=request.param)
        yield scene
        if scene.instance.is_running:
            scene.instance.kill()


def test_killed_between_commit_and_advance_it_loses_nothing_and_fires_nothing_twice(
    scene: Scene,
) -> None:
    scene.server.document = [{"id": 1}, {"id": 2}]
    scene.instance.start()
    scene.until_ids([1, 2])
    scene.until_states([2])
    (watcher,) = json.loads(scene.instance.cli("watchers", "list", "--json"))
    assert watcher["guarantee"] == "effectively_once"

    scene.kill.touch()
    scene.server.document = [{"id": 1}, {"id": 2}, {"id": 3}, {"id": 4}]
    wait_until(
        lambda: not scene.instance.is_running, within_s=60, what="it dies", of=scene.instance
    )
    assert 3 in scene.ids()
    # No place beyond the events; and where it goes with them, no event beyond the place.
    assert scene.states() == [len(scene.ids()) if scene.ahead else 2]

    # Of what was there while nobody looked nothing is lost, but for what has gone again.
    scene.server.document = [{"id": number} for number in range(2, 6)]
    scene.instance.start()
    scene.until_states([5])
    assert sorted(scene.ids()) == [1, 2, 3, 4, 5]

    # The state ends with the last watcher.
    scene.dag.unlink()
    scene.until_states([])
    assert scene.instance.stop() == 0
