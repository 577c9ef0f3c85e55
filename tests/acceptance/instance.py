"""A whole service under test: started by its command, killed, stopped, started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.acceptance.commands import start_service
from tests.acceptance.forked_commands import ForkedService
from tests.services.process import still_alive


class Instance:
    """`triggerer standalone` with a home of its own; its output goes to `<home>/service.log`."""

    def __init__(
        self,
        home: Path,
        *,
        dags_folder: Path,
        database_url: str,
        bootstrap: str,
        settings: str = "",
    ) -> None:
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        self.log = home / "service.log"
        self.config = home / "triggerer.toml"
        self.config.write_text(
            f'[core]\nhome = "{home}"\ndags_folder = "{dags_folder}"\n'
            f'[database]\nurl = "{database_url}"\n'
            f'[connections.kafka]\nbootstrap_servers = "{bootstrap}"\nmax_deliveries = 0\n'
            f"{settings}"
        )
        self._process: ForkedService | subprocess.Popen[bytes] | None = None
        self._children: list[psutil.Process] = []

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the service, without waiting until it is ready."""
        self._process = start_service(
            "standalone",
            "--config",
            str(self.config),
            cwd=self.home,
            log=self.log,
            environment=dict(os.environ),
        )

    def kill(self) -> None:
        """Kill the service's process with SIGKILL. Its children get no signal: they must end by themselves."""
        if self._process is not None:
            self._children = self.children()
            self._process.kill()
            self._process.wait()

    def stop(self, *, within_s: float = 60) -> int:
        """Stop the service with SIGTERM; return its exit code."""
        assert self._process is not None
        self._children = self.children()
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(within_s)

    def children(self) -> list[psutil.Process]:
        """Return all descendants of the service's process."""
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def orphans(self, *, within_s: float = 20) -> list[psutil.Process]:
        """Return the children that still live this time after the service has ended."""
        return still_alive(self._children, within_s=within_s)

    def cli(self, *arguments: str) -> str:
        """Run a command with this configuration; return its standard output."""
        return subprocess.run(
            [sys.executable, "-m", "triggerer", *arguments, "--config", str(self.config)],
            cwd=self.home,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    def tail(self, lines: int = 40) -> str:
        """Return the last lines of the service's log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def wait_until(
    condition: Callable[[], bool],
    *,
    within_s: float,
    what: str,
    of: Instance | None = None,
    every_s: float = 0.2,
) -> None:
    """Poll the condition until it is true.

    Raises:
        AssertionError: The condition did not become true in time. The message ends with the last lines of `of`'s log.
    """
    deadline = time.monotonic() + within_s
    while True:
        asked = time.monotonic()
        if condition():
            return
        now = time.monotonic()
        if now > deadline:
            log = "" if of is None else f"\n{of.tail()}"
            raise AssertionError(f"not within {within_s:g} s: {what}{log}")
        # A condition that runs a command takes a second of processor time, so pause for as long as it took.
        time.sleep(max(every_s, now - asked))
