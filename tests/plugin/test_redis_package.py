"""A plugin for Redis in a separate package: built, installed, and run with a Redis server and the whole service."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.acceptance.instance import Instance, wait_until
from tests.plugin.installed import Installed
from tests.services.availability import skip_or_fail
from tests.services.process import free_ports

PROJECT = Path(__file__).with_name("triggerer-redis")
DAG_FILE = """\
from triggerer import DAG, Asset, AssetWatcher, task
from triggerer_redis.watcher import RedisStreamEventTrigger

orders = Asset("orders", watchers=[AssetWatcher("redis", RedisStreamEventTrigger(["a", "b"]))])

with DAG("orders", schedule=orders, is_paused_upon_creation=True):

    @task
    def show(triggering_asset_events): ...

    show()
"""


@pytest.fixture(scope="module", autouse=True)
def _server_is_installed() -> None:
    if shutil.which("redis-server") is None:
        skip_or_fail("redis-server is not installed")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(PROJECT, tmp_path_factory.mktemp("redis"))


def test_it_keeps_the_suites_on_a_real_server(installed: Installed) -> None:
    shown = installed.run("-m", "pytest", "-q", "-rs", "-W", "error", "tests")
    assert re.search(r"\d\d passed", shown), shown
    # Redis has no locks to renew, its streams are logs, and it stores the position itself.
    assert set(re.findall(r"lacks (\w+)", shown)) == {"lock_renewal", "queue", "state"}


def test_check_says_what_it_promises_and_shows_no_secret(
    installed: Installed, tmp_path: Path
) -> None:
    (tmp_path / "orders.py").write_text(DAG_FILE)
    shown = installed.run(
        "-m", "triggerer", "check", "--dags-folder", str(tmp_path),
        TRIGGERER__CONNECTIONS__REDIS__PORT=str(free_ports(1)[0]),
        TRIGGERER__CONNECTIONS__REDIS__PASSWORD="s3cret",
    )  # fmt: skip
    assert "effectively once" in shown
    assert "s3cret" not in shown


class Scene:
    """A Redis server, a service that reads the streams `a` and `b`, and the values that were published."""

    def __init__(self, folder: Path, installed: Installed) -> None:
        (folder / "dags").mkdir()
        (folder / "dags" / "orders.py").write_text(DAG_FILE)
        self.server = _load_server_class()(folder)
        self.service = Instance(
            folder / "home",
            dags_folder=folder / "dags",
            database_url=f"sqlite:///{folder / 'home' / 'triggerer.db'}",
            bootstrap="unused:1",
            settings=f'[connections.redis]\nhost = "127.0.0.1"\nport = {self.server.port}\n',
        )
        self.published: list[str] = []

    def publish(self, count: int, *, then_hold: bool = False) -> None:
        """Add entries, alternately to `a` and `b`.

        Args:
            then_hold: Redis then holds all writes until `release`. So the service cannot store how far it has read.
        """
        with self.server.client() as client, client.pipeline() as pipeline:
            for _ in range(count):
                value = str(len(self.published))
                pipeline.xadd("ab"[len(self.published) % 2], {"value": value})
                self.published.append(value)
            if then_hold:
                pipeline.execute_command("CLIENT", "PAUSE", "600000", "WRITE")
            pipeline.execute()

    def release(self) -> None:
        with self.server.client() as client:
            client.client_unpause()

    def is_read(self) -> bool:
        """Return True while the service waits for new entries."""
        with self.server.client() as client:
            return any(found["cmd"] == "xread" for found in client.client_list())

    def cut(self) -> None:
        """End the connections of all clients."""
        with self.server.client() as client:
            client.client_kill_filter(_type="normal", skipme=True)

    def wait_for_events(self) -> None:
        wait_until(
            lambda: self.events().keys() >= set(self.published),
            within_s=120,
            what="all entries have their events",
            of=self.service,
        )

    def wait_for_position(self) -> None:
        wait_until(self._is_done, within_s=120, what="all entries are consumed", of=self.service)

    def _is_done(self) -> bool:
        with self.server.client() as client:
            return all(
                group["lag"] == 0 for stream in "ab" for group in client.xinfo_groups(stream)
            )

    def events(self) -> Counter[str]:
        shown = self.service.cli("assets", "events", "--json", "--limit", "0")
        return Counter(str(event["extra"]["value"]) for event in json.loads(shown))


def _load_server_class() -> type:
    """Return the class `RedisServer` of the package's own tests. Load it by its path: `tests` means our own tests."""
    spec = importlib.util.spec_from_file_location("redis_server", PROJECT / "tests" / "server.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.RedisServer  # type: ignore[no-any-return]


@pytest.fixture
def scene(installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setenv("PYTHONPATH", installed.path)
    scene = Scene(tmp_path, installed)
    with scene.server:
        scene.service.start()
        try:
            yield scene
        finally:
            scene.service.kill()


@pytest.mark.soak
def test_nothing_is_lost_or_made_twice_while_service_server_and_connections_die(
    scene: Scene,
) -> None:
    wait_until(scene.is_read, within_s=120, what="the service reads", of=scene.service)
    scene.publish(300)
    scene.service.kill()  # at any point between reading entries and moving the position
    scene.service.start()
    scene.wait_for_events()
    kill_server = partial(scene.server.stop, signal.SIGKILL)
    for end in (scene.service.kill, scene.cut, kill_server, scene.service.kill):
        wait_until(scene.is_read, within_s=60, what="the service reads", of=scene.service)
        scene.publish(100, then_hold=True)
        scene.wait_for_events()
        end()  # the events are durable, but the position in Redis has not moved
        scene.server.start()
        scene.release()
        if not scene.service.is_running:
            scene.service.start()
    scene.wait_for_position()
    assert scene.service.stop() == 0
    assert scene.events() == Counter(scene.published)
