"""A service manager hears from a standalone, and never from its child processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.acceptance.instance import Instance, wait_until
from tests.services.notify_socket import NotifySocket

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")

DAG_FILE = '''
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import anyio

from triggerer import DAG, Asset, AssetWatcher, BaseEventTrigger, TriggerEvent, task

HERE = Path(__file__).parent
(HERE / "parser").write_text("\\n".join(os.environ))


class Blocker(BaseEventTrigger):
    """Yields an event, and blocks the event loop for as long as there is a file `block`."""

    def serialize(self):
        return "blocking.Blocker", {}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        yield TriggerEvent({})
        while True:
            while (HERE / "block").exists():
                (HERE / "blocked").touch()
                time.sleep(0.02)
            await anyio.sleep(0.02)


asset = Asset("x-test://asset", name="asset", watchers=[AssetWatcher("w", Blocker())])

with DAG("on_asset", schedule=asset):
    @task
    def write():
        (HERE / "being_written").write_text("\\n".join(os.environ))
        (HERE / "being_written").rename(HERE / "worker")
    write()
'''


class Site:
    def __init__(self, folder: Path) -> None:
        self.dags = folder / "dags"
        self.dags.mkdir()
        (self.dags / "blocking.py").write_text(DAG_FILE)
        home = folder / "home"
        url = f"sqlite+aiosqlite:///{home / 'store.sqlite'}"
        self.instance = Instance(
            home, dags_folder=self.dags, database_url=url, bootstrap="nowhere:1"
        )

    def wait_for(self, *names: str) -> None:
        """Wait for files in the DAGs folder."""
        wait_until(
            lambda: all((self.dags / name).exists() for name in names),
            within_s=30,
            what=f"files {names}",
            of=self.instance,
            every_s=0.02,
        )


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    if site.instance.is_running:
        site.instance.kill()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[NotifySocket]:
    with NotifySocket(str(tmp_path / "notify")) as manager:
        yield manager


def wait_for_line(manager: NotifySocket, line: str, site: Site) -> list[str]:
    """Wait for a datagram with this line; return the lines of all until then."""
    heard: list[str] = []

    def has_come() -> bool:
        heard.extend(line for lines in manager.read() for line in lines)
        return line in heard

    wait_until(has_come, within_s=30, what=line, of=site.instance, every_s=0.02)
    return heard


def test_a_service_manager_hears_of_its_life_and_the_watchdog_of_a_loop_that_turns(
    site: Site, manager: NotifySocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    site.instance.start()
    names = "api, dag-processor, executor, scheduler, triggerer"
    heard = wait_for_line(manager, "READY=1", site)
    assert heard[:3] == [f"STATUS=Starting {names}", "READY=1", f"STATUS=Running {names}"]
    assert '"started"' in site.instance.log.read_text()

    for _ in range(3):
        wait_for_line(manager, "WATCHDOG=1", site)

    (site.dags / "block").touch()
    site.wait_for("blocked")
    manager.read()
    # A blocked event loop must send no ping. Otherwise there would be ten in one second.
    with pytest.raises(AssertionError, match="not within 1 s"):
        wait_until(lambda: bool(manager.read()), within_s=1, what="a ping")
    (site.dags / "block").unlink()
    wait_for_line(manager, "WATCHDOG=1", site)

    assert site.instance.stop() == 0
    heard = wait_for_line(manager, "STOPPING=1", site)
    # The event loop runs until the service has stopped, so pings may follow.
    assert [line for line in heard if line != "WATCHDOG=1"][-2:] == [
        "STOPPING=1",
        "STATUS=Stopping: SIGTERM",
    ]


def test_no_child_can_speak_for_the_service(
    site: Site, manager: NotifySocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    monkeypatch.setenv("WATCHDOG_USEC", "60000000")
    with site.instance.config.open("a") as config:
        config.write('[triggerer.isolation]\n"blocking.Blocker" = "process"\n')
    site.instance.start()
    # The parser's process writes "parser". An event of the isolated trigger starts a run, which writes "worker".
    site.wait_for("parser", "worker")
    for name in ("parser", "worker"):
        seen = (site.dags / name).read_text().splitlines()
        assert "PATH" in seen
        assert not {*VARIABLES} & {*seen}
    commands, environments = [], []
    for child in site.instance.children():
        # The process that the parser forks for a file may have ended already.
        with suppress(psutil.NoSuchProcess, OSError):
            environments.append(Path(f"/proc/{child.pid}/environ").read_text())
            commands.append(" ".join(child.cmdline()))
    for module in ("dag_processing.parser", "isolation.child", "worker.main"):
        assert any(f"triggerer.{module}" in command for command in commands), commands
    for environment in environments:
        assert not any(f"{name}=" in environment for name in VARIABLES)
    assert site.instance.stop() == 0
