"""The whole service polls a URL, and is killed just before or just after it stores the events of an answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.instance import Instance, wait_until
from tests.acceptance.records import Records
from tests.brokers.http.server import Asked, Reply, Server, serving

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

    # The events of the batch are durable. With `state_after`, the cursor behind them is durable, too.
    async def advance(self, batch):
        self.die("advance")
        await super().advance(batch)

    # Something is new, and nothing of it is durable.
    async def _poll(self):
        new, delay = await super()._poll()
        if new:
            self.die("answer")
        return new, delay

    def die(self, moment):
        if KILL.exists() and KILL.read_text() == moment:
            KILL.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

class Watching(HttpPollTrigger):
    def serialize(self):
        return f"{{__name__}}.{{type(self).__name__}}", super().serialize()[1]

    @classmethod
    def create_shared_stream_producer(cls, kwargs):
        trigger = cls(**kwargs)
        return Dying(trigger._polled(), settings=trigger._settings(), connection="http")

orders = Asset("x-test://orders", watchers=[
    AssetWatcher("w", Watching("orders", poke_interval=0.1, {arguments}), guarantee="effectively_once"),
])
"""
ITEMS = 'items="@value", item_key="id"'


class Scene:
    def __init__(
        self, folder: Path, url: str, server: Server, *, ahead: bool, arguments: str = ITEMS
    ) -> None:
        self.server = server
        self.ahead = ahead
        self.kill = folder / "kill"
        dags = folder / "dags"
        dags.mkdir()
        self.dag = dags / "watching.py"
        self.dag.write_text(WATCHERS.format(kill=self.kill, ahead=ahead, arguments=arguments))
        self.records = Records(url)
        self.instance = Instance(
            folder / "home",
            dags_folder=dags,
            database_url=url,
            bootstrap="127.0.0.1:9",
            settings=f'[connections.http]\nbase_url = "{server.url}"\n'
            "[dag_processor]\nmin_file_process_interval = 1\nremoval_grace = 0\n",
        )

    def ids(self) -> list[Any]:
        if not self.records.holds("SELECT 1 + count(*) FROM asset_event"):
            return []
        rows = self.records.rows("SELECT extra FROM asset_event ORDER BY id")
        extras = [json.loads(row[0]) if isinstance(row[0], str) else row[0] for row in rows]
        return [extra["value"]["id"] for extra in extras]

    def until_it_dies(self) -> None:
        dead = "it dies"
        wait_until(lambda: not self.instance.is_running, within_s=60, what=dead, of=self.instance)

    def until_asked(self, times: int = 3) -> None:
        """Wait for `times` further answers, so that the watcher has seen the content that the server has now."""
        before = len(self.server.statuses)
        what = "the watcher polls again"
        wait_until(
            lambda: len(self.server.statuses) >= before + times,
            within_s=60,
            what=what,
            of=self.instance,
        )

    def states(self) -> list[int]:
        rows = self.records.rows("SELECT value FROM stream_state")
        values = [json.loads(row[0]) if isinstance(row[0], str) else row[0] for row in rows]
        return [len(value["known"]) for value in values]

    def until_ids(self, expected: list[Any]) -> None:
        what = f"events of {expected}"
        wait_until(lambda: self.ids() == expected, within_s=60, what=what, of=self.instance)

    def until_states(self, expected: list[int]) -> None:
        what = f"states {expected}"
        wait_until(lambda: self.states() == expected, within_s=60, what=what, of=self.instance)


@contextmanager
def polled(
    folder: Path, url: str, *, ahead: bool = True, arguments: str = ITEMS
) -> Iterator[Scene]:
    with serving() as server:
        scene = Scene(folder, url, server, ahead=ahead, arguments=arguments)
        try:
            yield scene
        finally:
            if scene.instance.is_running:
                scene.instance.kill()


both_ways = pytest.mark.parametrize(
    "ahead",
    [
        pytest.param(True, id="with the events"),
        pytest.param(False, id="after the events", marks=pytest.mark.soak),
    ],
)


@pytest.fixture(
    params=[
        pytest.param(True, id="with the events"),
        pytest.param(False, id="after the events", marks=pytest.mark.soak),
    ]
)
def scene(request: pytest.FixtureRequest, tmp_path: Path, sqlite_url: str) -> Iterator[Scene]:
    with polled(tmp_path, sqlite_url, ahead=request.param) as scene:
        yield scene


def test_killed_between_commit_and_advance_it_loses_nothing_and_fires_nothing_twice(
    scene: Scene,
) -> None:
    scene.server.document = [{"id": 1}, {"id": 2}]
    scene.instance.start()
    scene.until_ids([1, 2])
    scene.until_states([2])
    (watcher,) = json.loads(scene.instance.cli("watchers", "list", "--json"))
    assert watcher["guarantee"] == "effectively_once"

    scene.kill.write_text("advance")
    scene.server.document = [{"id": 1}, {"id": 2}, {"id": 3}, {"id": 4}]
    scene.until_it_dies()
    assert 3 in scene.ids()
    # With `ahead`, the state is stored together with the events. Otherwise the kill came before the write of the state,
    # so the state still has the two items of the previous answer.
    assert scene.states() == [len(scene.ids()) if scene.ahead else 2]

    # Item 5 appeared while the service was down, so it makes an event.
    scene.server.document = [{"id": number} for number in range(2, 6)]
    scene.instance.start()
    scene.until_states([5])
    assert sorted(scene.ids()) == [1, 2, 3, 4, 5]

    # The state is deleted together with the watcher.
    scene.dag.unlink()
    scene.until_states([])
    assert scene.instance.stop() == 0


def with_another_etag_in_each_304(server: Server) -> Callable[[Asked], Reply]:
    """Answer 304 for the old content, but with the next content's ETag. A client that sends this ETag back never gets
    the next content."""

    def answer(asked: Asked) -> Reply:
        etag, following = f'"{len(server.document)}"', f'"{len(server.document) + 1}"'
        if asked.headers.get("If-None-Match") in (etag, following):
            return Reply(304, headers={"ETag": following})
        return Reply(body=json.dumps(server.document).encode(), headers={"ETag": etag})

    return answer


def with_another_etag_each_time(server: Server) -> Callable[[Asked], Reply]:
    def answer(_: Asked) -> Reply:
        etag = f'"{len(server.asked)}"'
        return Reply(body=json.dumps(server.document).encode(), headers={"ETag": etag})

    return answer


def with_last_modified_alone(server: Server) -> Callable[[Asked], Reply]:
    """Send Last-Modified without an ETag. New content has the old date, as if it appeared in the same second."""
    stamp = server.date = format_datetime(datetime.now(UTC), usegmt=True)

    def answer(asked: Asked) -> Reply:
        if asked.headers.get("If-Modified-Since") == stamp:
            return Reply(304, headers={"Last-Modified": stamp})
        body = json.dumps(server.document).encode()
        return Reply(body=body, headers={"Last-Modified": stamp})

    return answer


def with_a_last_page_that_grows(server: Server) -> Callable[[Asked], Reply]:
    """Serve pages of two items. A full page names the next page. A page with fewer items names itself."""

    def answer(asked: Asked) -> Reply:
        page = int(asked.query.get("page", ["0"])[0])
        items = server.document[2 * page : 2 * page + 2]
        following = page + 1 if len(items) == 2 else page
        body = json.dumps({"items": items, "next": following}).encode()
        etag = f'"{page}-{len(items)}"'
        if asked.headers.get("If-None-Match") == etag:
            return Reply(304, headers={"ETag": etag})
        return Reply(body=body, headers={"ETag": etag})

    return answer


PAGES = 'items="items", item_key="id", cursor=dict(path="next", param="page")'


@pytest.mark.parametrize(
    ("behaviour", "arguments"),
    [
        pytest.param(with_another_etag_in_each_304, ITEMS, marks=pytest.mark.soak),
        pytest.param(with_another_etag_each_time, ITEMS, marks=pytest.mark.soak),
        (with_last_modified_alone, ITEMS),
        (with_a_last_page_that_grows, PAGES),
    ],
)
def test_killed_between_an_answer_and_its_events_it_asks_again_whatever_the_server_says_of_changes(
    tmp_path: Path,
    sqlite_url: str,
    behaviour: Callable[[Server], Callable[[Asked], Reply]],
    arguments: str,
) -> None:
    with polled(tmp_path, sqlite_url, arguments=arguments) as scene:
        scene.server.document = [{"id": 1}, {"id": 2}, {"id": 3}]
        scene.server.answer = behaviour(scene.server)
        scene.instance.start()
        scene.until_ids([1, 2, 3])
        scene.until_asked()

        scene.kill.write_text("answer")
        scene.server.document = [*scene.server.document, {"id": 4}]
        scene.until_it_dies()
        assert scene.ids() == [1, 2, 3]

        scene.server.document = [*scene.server.document, {"id": 5}]
        scene.instance.start()
        scene.until_ids([1, 2, 3, 4, 5])

        # A graceful stop and a start with the same content lose and repeat nothing.
        assert scene.instance.stop() == 0
        scene.instance.start()
        scene.until_asked()
        scene.server.document = [*scene.server.document, {"id": 6}]
        scene.until_ids([1, 2, 3, 4, 5, 6])
        scene.until_asked()
        assert scene.ids() == [1, 2, 3, 4, 5, 6]
        assert scene.instance.stop() == 0


@both_ways
def test_a_document_that_changes_back_while_the_service_is_dead_fires_when_it_changes_again(
    tmp_path: Path, sqlite_url: str, ahead: bool
) -> None:
    """The service dies after it has stored the event of "down". At the restart the document is "up" again. Without
    `ahead`, the stored state still says that "up" was settled last. But the state also says that "down" was delivered,
    so "up" must fire again.
    """
    with polled(tmp_path, sqlite_url, ahead=ahead, arguments="") as scene:
        scene.server.document = {"id": "up"}
        scene.instance.start()
        scene.until_ids(["up"])
        scene.until_states([1])

        scene.kill.write_text("advance")
        scene.server.document = {"id": "down"}
        scene.until_it_dies()
        assert scene.ids() == ["up", "down"]

        scene.server.document = {"id": "up"}
        scene.instance.start()
        scene.until_ids(["up", "down", "up"])
        scene.server.document = {"id": "down"}
        scene.until_ids(["up", "down", "up", "down"])
        scene.until_asked()
        assert scene.ids() == ["up", "down", "up", "down"]
        assert scene.instance.stop() == 0


@both_ways
def test_a_document_that_stays_as_it_was_when_the_service_died_fires_once(
    tmp_path: Path, sqlite_url: str, ahead: bool
) -> None:
    with polled(tmp_path, sqlite_url, ahead=ahead, arguments="") as scene:
        scene.server.document = {"id": "up"}
        scene.instance.start()
        scene.until_ids(["up"])
        for moment, content in (("answer", "down"), ("advance", "up")):
            events = scene.ids()
            scene.kill.write_text(moment)
            scene.server.document = {"id": content}
            scene.until_it_dies()
            scene.instance.start()
            scene.until_ids([*events, content])
            scene.until_asked()
            assert scene.ids() == [*events, content]
        assert scene.instance.stop() == 0
