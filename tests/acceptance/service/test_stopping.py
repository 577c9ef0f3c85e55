"""A service stops in order at any instant of its life, above all before it has started."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.services.process import still_alive

DAG = """
from triggerer import DAG, Asset, AssetWatcher, task
from watchers.directory import DirectoryFileDeleteTrigger

files = Asset("x-files", name="files", watchers=[
    AssetWatcher("inbox", DirectoryFileDeleteTrigger({inbox!r}, "go", poke_interval=0.2))])

with DAG("on_files", schedule=files):
    @task
    def read():
        print("read")
    read()
"""

# The command imports these modules, in this order, before the service starts. A test sends SIGTERM or SIGINT at one of
# the imports. So the moment of the signal does not depend on the machine's speed.
_IMPORTS = (
    "triggerer.cli.app",
    "typer",
    "triggerer.config",
    "sqlalchemy",
    "triggerer.service.running",
)
_SIGNALLED_AS_IT_IMPORTS = """
import os, signal, sys

def look(event, arguments, awaited=os.environ.pop("TOLD_AT"), signum=int(os.environ.pop("TOLD_BY"))):
    if event == "import" and arguments[0] == awaited:
        os.kill(os.getpid(), signum)

sys.addaudithook(look)
"""


class Command:
    """A service's command, and all processes that it has started."""

    def __init__(self, folder: Path, database_url: str | None = None) -> None:
        self.folder = folder
        self.log = folder / "service.log"
        (folder / "dags").mkdir()
        (folder / "inbox").mkdir()
        (folder / "dags" / "files.py").write_text(DAG.format(inbox=str(folder / "inbox")))
        database = f'[database]\nurl = "{database_url}"\n' if database_url else ""
        (folder / "triggerer.toml").write_text(
            f'[core]\nhome = "."\ndags_folder = "dags"\nshutdown_grace = 2\n{database}'
        )
        self._mark = f"STOPPED_BY={uuid.uuid4()}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, part: str, **environment: str) -> subprocess.Popen[bytes]:
        name, value = self._mark.split("=")
        kept = {k: v for k, v in os.environ.items() if not k.startswith("TRIGGERER")}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "triggerer", part],
                cwd=self.folder,
                env={**kept, name: value, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self._process

    def until_it_hears(self) -> None:
        """Wait until SIGTERM has a handler."""
        assert self._process is not None
        bit = 1 << (signal.SIGTERM - 1)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            status = Path(f"/proc/{self._process.pid}/status").read_text()
            caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
            if int(caught.split()[1], 16) & bit:
                return
            assert self._process.poll() is None, self.log.read_text()
        pytest.fail("the command never had a handler for SIGTERM")

    def family(self) -> list[psutil.Process]:
        """Return the command's process and its descendants, found by a mark in their environment."""
        return [process for process in psutil.process_iter() if self._is_marked(process)]

    def _is_marked(self, process: psutil.Process) -> bool:
        try:
            # A process that has overwritten its environment leaves an empty entry, and psutil reads no further.
            return self._mark.encode() in Path(f"/proc/{process.pid}/environ").read_bytes()
        except OSError:
            return False

    def has_left_nothing(self) -> bool:
        """Return whether, after ten seconds at most, no process and no lock is left."""
        left = still_alive(self.family(), within_s=10)
        lock = self.folder / "triggerer.db.lock"
        if lock.exists():
            with lock.open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return not left

    def end(self) -> None:
        for process in self.family():
            process.kill()
        if self._process is not None:
            self._process.wait()


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    command = Command(tmp_path)
    yield command
    command.end()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("module", _IMPORTS)
def test_it_stops_in_order_though_it_only_imports_what_it_needs(
    command: Command, tmp_path: Path, module: str, signum: signal.Signals
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(_SIGNALLED_AS_IT_IMPORTS)
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    service = command.start("standalone", PYTHONPATH=path, TOLD_AT=module, TOLD_BY=str(int(signum)))
    assert service.wait(30) == 0, command.log.read_text()
    assert '"started"' not in command.log.read_text()
    assert command.has_left_nothing()


@pytest.mark.parametrize(("signum", "first"), [(signal.SIGTERM, 0), (signal.SIGINT, 2)])
def test_it_stops_in_order_at_whatever_instant_it_is_told_to(
    command: Command, signum: signal.Signals, first: int
) -> None:
    for tenths in range(first, 21, 4):
        service = command.start("standalone")
        command.until_it_hears()
        # The test varies the instant. The service must stop in order at each one.
        time.sleep(tenths / 10)
        service.send_signal(signum)
        assert service.wait(30) == 0, (tenths, command.log.read_text())
        assert command.has_left_nothing(), (tenths, command.log.read_text())


_BLOCKED = """
import asyncio, time
from pathlib import Path
from triggerer import DAG, Asset, AssetWatcher, BaseEventTrigger

class Blocked(BaseEventTrigger):
    def serialize(self): return "blocked.Blocked", {{}}
    async def run(self):
        Path({begun!r}).touch()
        await asyncio.to_thread(time.sleep, 600)
        yield

with DAG("blocked", schedule=Asset("x-blocked", watchers=[AssetWatcher("w", Blocked())])):
    pass
"""


def test_a_watcher_that_waits_in_a_thread_does_not_keep_a_service_that_is_to_stop(
    command: Command,
) -> None:
    begun = command.folder / "begun"
    (command.folder / "dags" / "blocked.py").write_text(_BLOCKED.format(begun=str(begun)))
    service = command.start("standalone")
    deadline = time.monotonic() + 30
    while not begun.exists():
        assert time.monotonic() < deadline, command.log.read_text()
        time.sleep(0.05)
    service.terminate()
    assert service.wait(30) == 0, command.log.read_text()
    assert "threads of watchers are still running" in command.log.read_text()


@pytest.mark.services
@pytest.mark.parametrize("part", ["triggerer", "scheduler", "dag-processor", "executor"])
def test_a_service_of_its_own_stops_in_order_at_whatever_instant_it_is_told_to(
    tmp_path: Path, empty_postgres_url: str, part: str
) -> None:
    command = Command(tmp_path, empty_postgres_url)
    try:
        for tenths in range(0, 21, 4):
            service = command.start(part)
            command.until_it_hears()
            # The test varies the instant. The service must stop in order at each one.
            time.sleep(tenths / 10)
            service.send_signal(signal.SIGTERM)
            assert service.wait(30) == 0, (tenths, command.log.read_text())
            assert command.has_left_nothing(), (tenths, command.log.read_text())
    finally:
        command.end()
