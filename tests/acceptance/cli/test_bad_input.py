"""An error names the problem and its remedy; everything else keeps working, and nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.commands import json_of, run_command
from tests.acceptance.instance import Instance, wait_until
from tests.acceptance.records import Records, conservation
from tests.services.availability import skip_or_fail
from tests.services.brokers.kafka import KafkaServer
from tests.services.process import free_ports

WATCHED = """
from triggerer import DAG, Asset, AssetWatcher, task
from watchers.kafka import KafkaEventTrigger

asset = Asset("x-test://{name}", watchers=[AssetWatcher("w", KafkaEventTrigger("{topic}"{arguments}))])

with DAG("on_{name}", schedule=asset):

    @task
    def count(triggering_asset_events):
        return len(triggering_asset_events)

    count()
"""


class Site:
    """An instance and its DAGs folder, and the commands beside it."""

    def __init__(self, folder: Path, bootstrap: str, *, home: Path | None = None) -> None:
        self.dags = folder / "dags"
        self.dags.mkdir()
        home = home or folder / "home"
        self.url = f"sqlite+aiosqlite:///{home / 'store.sqlite'}"
        self.instance = Instance(
            home, dags_folder=self.dags, database_url=self.url, bootstrap=bootstrap
        )
        self.records = Records(self.url)

    def watch(self, name: str, topic: str, arguments: str = "") -> None:
        (self.dags / f"{name}.py").write_text(
            WATCHED.format(name=name, topic=topic, arguments=arguments)
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_command(*arguments, "--config", str(self.instance.config))

    def json(self, *arguments: str) -> Any:
        return json_of(self.run(*arguments, "--json"))

    def watcher(self, name: str) -> dict[str, Any]:
        """The watcher of an asset, as the command shows it."""
        (shown,) = [
            watcher
            for watcher in self.json("watchers", "list")
            if watcher["asset_name"] == f"x-test://{name}"
        ]
        return dict(shown)

    def wait_until_watcher_is(self, state: str) -> None:
        wait_until(
            lambda: self.records.holds(f"SELECT count(*) FROM watcher WHERE state = '{state}'"),
            within_s=60,
            what=f"the watcher is {state}",
            of=self.instance,
            every_s=0.05,
        )

    def failing_watcher(self, name: str) -> dict[str, Any]:
        """Return the asset's watcher once the command shows it as failing. A retry shows another state for a moment."""
        self.wait_until_watcher_is("failing")
        shown: list[dict[str, Any]] = []

        def is_failing() -> bool:
            shown[:] = [self.watcher(name)]
            return bool(shown[0]["state"] == "failing")

        wait_until(is_failing, within_s=60, what=f"{name} is shown as failing", of=self.instance)
        return shown[0]

    def events(self) -> int:
        count: int = self.records.value("SELECT count(*) FROM asset_event")
        return count


@pytest.fixture
def site(tmp_path: Path, kafka_server: KafkaServer) -> Iterator[Site]:
    site = Site(tmp_path, kafka_server.bootstrap_servers)
    yield site
    if site.instance.is_running:
        site.instance.kill()


def test_a_broken_dag_file_is_shown_with_file_line_and_reason_and_breaks_nothing_else(
    site: Site, kafka_server: KafkaServer
) -> None:
    kafka_server.create_topic("fine")
    site.watch("fine", "fine")
    (site.dags / "broken.py").write_text("x = 1\ndef f(:\n")
    (site.dags / "uri.py").write_text("from triggerer import Asset\n\nasset = Asset('kafka://')\n")
    checked = site.run("check")
    assert checked.returncode == 1
    shown = checked.stdout + checked.stderr
    assert "broken.py:2" in shown
    assert "invalid syntax" in shown
    assert "uri.py:3" in shown
    assert "kafka://" in shown

    site.instance.start()
    kafka_server.produce("fine", ['{"n": 1}'])
    wait_until(
        lambda: site.records.holds("SELECT count(*) FROM dag_run WHERE state = 'success'"),
        within_s=30,
        what="the run of the file that is fine",
        of=site.instance,
        every_s=0.05,
    )
    assert "broken.py" in site.run("dags", "list").stderr
    (site.dags / "broken.py").write_text("x = 1\n")
    wait_until(
        lambda: site.records.holds(
            "SELECT count(*) FROM dag_file WHERE path = 'broken.py' AND errors NOT LIKE '%syntax%'"
        ),
        within_s=20,
        what="a mended file is fine",
        every_s=0.05,
    )
    assert "broken.py" not in site.run("dags", "list").stderr


def test_an_unknown_topic_is_the_watchers_error_until_the_topic_is_there(
    site: Site, kafka_server: KafkaServer
) -> None:
    site.watch("late", "late-topic")
    site.instance.start()
    error = site.failing_watcher("late")["error"]
    assert "late-topic" in error
    assert "create" in error
    kafka_server.create_topic("late-topic")
    kafka_server.produce("late-topic", ['{"n": 1}', '{"n": 2}'])
    wait_until(lambda: site.events() == 2, within_s=90, what="both events", of=site.instance)


def test_a_broker_that_is_not_there_is_the_watchers_error(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    site = Site(tmp_path, f"127.0.0.1:{port}")
    site.watch("nowhere", "topic")
    site.instance.start()
    try:
        assert f"127.0.0.1:{port}" in site.failing_watcher("nowhere")["error"]
        assert site.instance.stop() == 0
    finally:
        if site.instance.is_running:
            site.instance.kill()


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("mysql://127.0.0.1/x", "mysql"),
        ("postgresql+asyncpg://127.0.0.1:1/x", "127.0.0.1"),
        ("sqlite+aiosqlite:////proc/no/such/place.sqlite", "/proc/no/such"),
        ("nonsense", "database URL"),
    ],
)
def test_a_wrong_database_url_is_refused_in_one_line_that_names_it(
    tmp_path: Path, url: str, named: str
) -> None:
    site = Site(tmp_path, "127.0.0.1:1")
    text = site.instance.config.read_text().replace(site.url, url)
    # At its start, the service waits for a database that does not answer. This test shortens the wait.
    text = text.replace("[database]\n", "[database]\nstart_timeout = 2\n")
    site.instance.config.write_text(text)
    refused = site.run("standalone")
    assert refused.returncode == 1
    assert named in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_message_that_is_not_what_the_filter_expects_is_rejected_and_logged(
    site: Site, kafka_server: KafkaServer
) -> None:
    kafka_server.create_topic("mixed")
    site.watch("mixed", "mixed", ', match={"kind": "good"}')
    kafka_server.produce(
        "mixed",
        ['{"kind": "good"}', "no json", "[1, 2]", '{"kind": 7}', b"\xff\xfe", '{"kind": "good"}'],
    )
    site.instance.start()
    trigger_group = _committed(site, kafka_server)
    wait_until(
        lambda: trigger_group() == {0: 6},
        within_s=40,
        what="all six are passed",
        of=site.instance,
    )
    assert site.events() == 2
    assert "rejected" in site.instance.log.read_text()


def _committed(site: Site, kafka_server: KafkaServer) -> Any:
    from triggerer.pluginkit.arguments import default_group

    return lambda: kafka_server.committed_offsets(default_group("kafka", ["mixed"]), "mixed")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of 6 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        skip_or_fail(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_is_reported_and_once_there_is_room_nothing_is_lost(
    tmp_path: Path, small_disk: Path, kafka_server: KafkaServer
) -> None:
    kafka_server.create_topic("large")
    site = Site(tmp_path, kafka_server.bootstrap_servers, home=small_disk / "home")
    site.watch("large", "large")
    site.instance.log = tmp_path / "service.log"
    filler = small_disk / "filler"
    site.instance.start()
    try:
        site.wait_until_watcher_is("running")
        _fill(filler)
        messages = [json.dumps({"n": n, "text": "x" * 1000}) for n in range(500)]
        kafka_server.produce("large", messages)
        wait_until(
            lambda: "full" in site.instance.log.read_text(),
            within_s=40,
            what="the log says that the disk is full",
            of=site.instance,
        )
        assert site.instance.is_running
        filler.unlink()
        wait_until(lambda: site.events() == 500, within_s=60, what="all events", of=site.instance)
        wait_until(
            lambda: (now := conservation(site.records)).queued == 0 and now.active_runs == 0,
            within_s=60,
            what="all events are in runs",
            of=site.instance,
        )
        assert conservation(site.records).taken == 500
    finally:
        site.instance.kill()


def _fill(filler: Path) -> None:
    """Write to the file until its disk is full."""
    with filler.open("wb", buffering=0) as file:
        while True:
            try:
                file.write(os.urandom(4096))
            except OSError:
                return
