"""The plugins that docs/howto/write-a-plugin.md shows, each built as a wheel and installed outside the project."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugin.installed import ROOT, Installed

PROJECT = Path(__file__).with_name("triggerer-lines")
QUEUE = Path(__file__).with_name("triggerer-sqlite")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(PROJECT, tmp_path_factory.mktemp("lines"))


def test_the_service_finds_it_by_its_entry_points(installed: Installed) -> None:
    code = (
        "import json\n"
        "from triggerer.plugins import list_plugins, load_trigger_class\n"
        "path = 'triggerer_lines.watcher.LineEventTrigger'\n"
        "found = load_trigger_class(path, dags_folder=None)\n"
        "plugins = [plugin for plugin in list_plugins() if plugin.name == 'lines']\n"
        "print(json.dumps([found.__module__, plugins]))\n"
    )
    module, plugins = json.loads(installed.run("-c", code))
    assert module == "triggerer_lines.watcher"
    assert plugins == [
        ["triggerer.watchers", "lines", "triggerer_lines.watcher", None],
        ["triggerer.producers", "lines", "triggerer_lines.producer", None],
    ]


def test_it_keeps_the_suites_and_says_which_features_it_lacks(installed: Installed) -> None:
    shown = installed.run("-m", "pytest", "-q", "-rs", "-W", "error", "tests")
    assert re.search(r"\d\d passed", shown), shown
    assert set(re.findall(r"lacks (\w+)", shown)) == {
        "lock_renewal",
        "pause_lanes",
        "queue",
    }


def test_the_queue_of_the_guide_is_a_wheel_that_keeps_the_suites(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    installed = Installed(QUEUE, tmp_path_factory.mktemp("sqlite"))
    shown = installed.run("-m", "pytest", "-q", "-rs", "-W", "error", "tests")
    assert re.search(r"\d\d passed", shown), shown
    # A queue keeps no order, lanes or positions, and its producer cannot pause.
    lacks = {one for names in re.findall(r"lacks ([\w, ]+)", shown) for one in names.split(", ")}
    assert lacks == {"ordering", "seek", "lanes", "pause", "pause_lanes", "log", "state"}
    code = (
        "from triggerer.plugins import load_trigger_class\n"
        "path = 'triggerer_sqlite.watcher.SqliteQueueEventTrigger'\n"
        "print(load_trigger_class(path, dags_folder=None).__module__)\n"
    )
    assert installed.run("-c", code) == "triggerer_sqlite.watcher\n"


def test_a_dag_may_watch_with_it(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "lines.py").write_text(
        "from triggerer import DAG, Asset, AssetWatcher, task\n"
        "from triggerer_lines.watcher import LineEventTrigger\n"
        "watcher = AssetWatcher('errors', LineEventTrigger('/var/lines', contains='error'))\n"
        "with DAG('lines', schedule=Asset('errors', watchers=[watcher])):\n"
        "    @task\n"
        "    def show(triggering_asset_events): ...\n"
        "    show()\n"
    )
    shown = installed.run("-m", "triggerer", "check", "--dags-folder", str(tmp_path))
    assert "1 watcher, 0 errors" in shown


def test_the_packages_type_check(tmp_path: Path) -> None:
    names = ["triggerer_lines", "triggerer_redis", "triggerer_sqlite"]
    for name in names:
        shutil.copytree(PROJECT.with_name(name.replace("_", "-")) / name, tmp_path / name)
    _type_check(tmp_path, *names)


_SHOP_PRODUCER = """\
from collections.abc import AsyncIterator, Sequence
from typing import Any

from triggerer.abc import AdvanceItem, SharedStreamProducer


class ShopProducer(SharedStreamProducer):
    def __init__(self, shelf: str, start: str, *, settings: object) -> None: ...

    def open_stream(self) -> AsyncIterator[Any]:
        raise NotImplementedError

    async def advance(self, batch: Sequence[AdvanceItem]) -> None: ...
"""


def test_the_trigger_of_the_guide_type_checks(tmp_path: Path) -> None:
    section = (
        (ROOT / "docs" / "howto" / "write-a-plugin.md")
        .read_text()
        .partition("## A message broker\n")[2]
    )
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert found is not None
    (tmp_path / "shop.py").write_text(found[1])
    (tmp_path / "shop_producer.py").write_text(_SHOP_PRODUCER)
    _type_check(tmp_path, "shop.py")


def _type_check(folder: Path, *paths: str) -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--follow-imports=silent",
         "--config-file=", *paths],
        cwd=folder, env={**os.environ, "MYPYPATH": f"{ROOT}:{folder}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_guide_shows_the_packages_as_they_are() -> None:
    guide = (ROOT / "docs" / "howto" / "write-a-plugin.md").read_text()
    shown = dict(re.findall(r"`([\w/.-]+)`:\n\n```\w+\n(.*?)```", guide, flags=re.DOTALL))
    queue = {f"{QUEUE.name}/{path}": text for path, text in _files(QUEUE).items()}
    assert shown == _files(PROJECT) | queue


def _files(project: Path) -> dict[str, str]:
    return {
        str(path.relative_to(project)): path.read_text()
        for path in project.rglob("*")
        if path.suffix in (".py", ".toml") and path.name not in ("__init__.py", "conftest.py")
    }
