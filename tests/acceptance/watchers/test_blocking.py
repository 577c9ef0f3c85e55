"""The log names a watcher that blocks a whole service's event loop. The configuration can isolate this watcher."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.acceptance.instance import Instance, wait_until
from tests.acceptance.records import Records

DAG_FILE = '''
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path

import anyio

from triggerer import Asset, AssetWatcher, BaseEventTrigger, TriggerEvent
from triggerer.abc import get_connection
from watchers.directory import FileDeleteTrigger

logger = logging.getLogger(__name__)


class Slow(BaseEventTrigger):
    """Blocks for a second before each event."""

    def serialize(self):
        return "blocking.Slow", {}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        pause_s = float(get_connection("slow")["pause_s"])
        while True:
            time.sleep(pause_s)  # here
            logger.warning("blocked for %g s", pause_s)
            yield TriggerEvent({})
            await anyio.sleep(0.1)


slow = Asset("x-test://slow", name="slow", watchers=[AssetWatcher("w", Slow())])
quick = Asset(
    "x-test://quick",
    name="quick",
    watchers=[AssetWatcher("w", FileDeleteTrigger(Path(__file__).parent / "file", poke_interval=0.05))],
)
'''


class Site:
    def __init__(self, folder: Path) -> None:
        dags = folder / "dags"
        dags.mkdir()
        (dags / "blocking.py").write_text(DAG_FILE)
        home = folder / "home"
        self.file = dags / "file"
        url = f"sqlite+aiosqlite:///{home / 'store.sqlite'}"
        self.instance = Instance(home, dags_folder=dags, database_url=url, bootstrap="nowhere:1")
        self.records = Records(url)
        with self.instance.config.open("a") as config:
            config.write("[connections.slow]\npause_s = 1.0\n")

    def isolate(self, placement: str) -> None:
        with self.instance.config.open("a") as config:
            config.write(f'[triggerer.isolation]\n"blocking.Slow" = "{placement}"\n')

    def events(self, asset: str) -> int:
        try:
            count: int = self.records.value(
                "SELECT count(*) FROM asset_event e JOIN asset a ON a.id = e.asset_id"
                f" WHERE a.name = '{asset}'"
            )
        except Exception:  # noqa: BLE001  (there is no database yet)
            return 0
        return count

    def wait_for_events(self, asset: str, count: int) -> None:
        wait_until(
            lambda: self.events(asset) >= count,
            within_s=30,
            what=f"{count} events of {asset}",
            of=self.instance,
        )

    def log(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.instance.log.read_text().splitlines()]
        return [line for line in lines if line["event"] == event]

    def isolated(self) -> list[psutil.Process]:
        children = self.instance.children()
        return [child for child in children if "triggerer.isolation.child" in child.cmdline()]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    if site.instance.is_running:
        site.instance.kill()


def test_on_the_services_loop_it_is_named_with_the_line(site: Site) -> None:
    site.instance.start()
    site.wait_for_events("slow", 3)
    stalls = site.log("the event loop stands still")
    assert stalls, site.instance.tail()
    # Every report names the watcher, and what it was doing.
    assert {(stall["trigger"], stall["doing"]) for stall in stalls} == {("slow/w", "waiting")}
    assert "time.sleep(pause_s)  # here" in stalls[0]["stack"]
    assert "blocking.py" in stalls[0]["stack"]
    over = site.log("the event loop turns again")
    assert 0.5 < over[0]["seconds"] < 2
    assert site.instance.stop() == 0


@pytest.mark.parametrize("placement", ["thread", "process"])
def test_one_that_is_isolated_stalls_nobody_and_works_as_before(placement: str, site: Site) -> None:
    site.isolate(placement)
    site.instance.start()
    site.wait_for_events("slow", 2)
    site.file.touch()
    site.wait_for_events("quick", 1)
    site.wait_for_events("slow", 4)
    assert site.log("the event loop stands still") == []
    (line,) = site.log("trigger is isolated")
    assert (line["trigger"], line["placement"]) == ("slow/w", placement)
    # The plugin's lines look like all other lines.
    assert len(site.log("blocked for 1 s")) >= 4
    assert len(site.isolated()) == (1 if placement == "process" else 0)
    assert site.instance.stop() == 0
    assert site.instance.orphans() == []


def test_an_isolated_watcher_dies_with_a_service_that_is_killed(site: Site) -> None:
    site.isolate("process")
    site.instance.start()
    site.wait_for_events("slow", 1)
    assert len(site.isolated()) == 1
    site.instance.kill()
    assert site.instance.orphans(within_s=5) == []
    # The next service continues.
    before = site.events("slow")
    site.instance.start()
    site.wait_for_events("slow", before + 2)
    assert site.instance.stop() == 0


SLOW_IMPORT = """
import time
from triggerer import Asset, AssetWatcher, BaseEventTrigger, TriggerEvent

time.sleep(1.5)


class Once(BaseEventTrigger):
    def serialize(self):
        return "importing.Once", {}

    async def run(self):
        yield TriggerEvent({})


once = Asset("x-test://once", name="once", watchers=[AssetWatcher("w", Once())])
"""


def test_a_module_that_takes_its_time_to_import_stalls_nobody(site: Site) -> None:
    site.isolate("thread")
    site.instance.start()
    site.wait_for_events("slow", 1)
    site.file.with_name("importing.py").write_text(SLOW_IMPORT)
    site.wait_for_events("once", 1)
    assert site.log("the event loop stands still") == []
    assert site.instance.stop() == 0
