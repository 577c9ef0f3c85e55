"""The service as a child process, from its configuration to what it cost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import orjson
import psutil

from tests.acceptance.records import Records

Stamping = Literal["none", "flushes", "events"]
"""Which instants are noted; "none" is `triggerer standalone` itself."""


class Progress(NamedTuple):
    """How far the service is."""

    highest_event: int
    """The highest id, which is the number of events, as long as nothing is delivered twice."""
    waiting: int
    active_runs: int


class Service:
    """Everything in one process tree, with a home of its own below `folder`."""

    def __init__(
        self,
        folder: Path,
        *,
        dag_file: str,
        url: str,
        bootstrap: str,
        settings: str = "",
        tree: Path | None = None,
    ) -> None:
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self._log = folder / "service.log"
        self._stamps = folder / "stamps.json"
        self._config = folder / "triggerer.toml"
        dags = folder / "dags"
        dags.mkdir()
        (dags / "bench.py").write_text(dag_file)
        self._config.write_text(
            f'[core]\nhome = "{self.home}"\ndags_folder = "{dags}"\n'
            f'[database]\nurl = "{url}"\n'
            f'[connections.kafka]\nbootstrap_servers = "{bootstrap}"\n{settings}'
        )
        self.records = Records(url)
        self._tree = tree
        self.started_at = 0.0
        self.prefix: list[str] = []
        """A command that runs the interpreter, with its options."""
        self.extra_path: Path | None = None
        """A folder of modules that come before the service's own."""
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, stamping: Stamping) -> None:
        """Start it; returns at once."""
        arguments = ["triggerer", "standalone", "--config", str(self._config)]
        if stamping != "none":
            arguments = ["tests.benchmarks.stamped_service", "--config", str(self._config)]
            arguments += ["--stamps", str(self._stamps), "--each", stamping]
        with self._log.open("ab") as log:
            self.started_at = time.monotonic()
            self._process = subprocess.Popen(
                [*self.prefix, sys.executable, "-m", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self._tree,
                env=self._environment(),
            )

    def _environment(self) -> dict[str, str] | None:
        folders = [str(folder) for folder in (self.extra_path, self._tree) if folder is not None]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(folders)} if folders else None

    def stop(self) -> dict[str, Any]:
        """SIGTERM, and the stamps that it wrote, `queued` by the runs' primary keys; empty where none were asked for.

        Raises:
            RuntimeError: It failed; the message has the end of its log.
        """
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(60)
        if code != 0:
            raise RuntimeError(f"the service ended with {code}:\n{self.log_tail()}")
        if not self._stamps.exists():
            return {}
        stamps: dict[str, Any] = orjson.loads(self._stamps.read_bytes())
        # One service makes all runs, one after the other.
        pks = [pk for (pk,) in self.records.rows("SELECT id FROM dag_run ORDER BY id")]
        stamps["queued"] = dict(zip(pks, stamps["queued"], strict=True))
        return stamps

    def kill(self) -> None:
        """End it, if it runs, with all that it started."""
        if self._process is None or self._process.poll() is not None:
            return
        family = self.family()
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def family(self) -> list[psutil.Process]:
        """The service and all processes below it."""
        try:
            root = psutil.Process(self.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def cpu_seconds(self) -> float:
        """Used so far by the whole tree, children that ended included."""
        total = 0.0
        for process in self.family():
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        return total

    def wait_until(
        self, condition: Callable[[], bool], *, within_s: float, what: str, every_s: float = 0.1
    ) -> None:
        """Poll a condition, and give up as soon as the service has ended.

        Raises:
            RuntimeError: It ended, or the condition did not come true in time.
        """
        assert self._process is not None
        deadline = time.monotonic() + within_s
        while not condition():
            if self._process.poll() is not None:
                raise RuntimeError(f"the service ended:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"not within {within_s:g} s: {what}\n{self.log_tail()}")
            time.sleep(every_s)

    def wait_for_watchers(self, count: int, *, every_s: float = 0.1) -> float:
        """Wait until this number of watchers is running; return the seconds since the start."""

        def are_running() -> bool:
            return bool(self.ask("SELECT count(*) FROM watcher WHERE state = 'running'") == count)

        self.wait_until(are_running, within_s=60, what=f"{count} watchers run", every_s=every_s)
        return time.monotonic() - self.started_at

    def progress(self) -> Progress:
        """Three counts that cost next to nothing, however much there is."""
        (counts,) = self.records.rows(
            "SELECT (SELECT coalesce(max(id), 0) FROM asset_event),"
            " (SELECT count(*) FROM queued_asset_event WHERE run_pk IS NULL),"
            " (SELECT count(*) FROM dag_run WHERE state IN ('queued', 'running'))"
        )
        return Progress(*counts)

    def wait_until_done(self, events: int, *, within_s: float) -> int:
        """Wait until successful runs have this number of events; return the number of runs."""
        self.wait_until(
            lambda: self.progress() == Progress(events, 0, 0),
            within_s=within_s,
            what=f"{events:,} events in runs that have ended",
            every_s=0.5,
        )
        ((recorded, taken, runs, failed),) = self.records.rows(
            "SELECT (SELECT count(*) FROM asset_event),"
            " (SELECT count(run_pk) FROM queued_asset_event),"
            " (SELECT count(*) FROM dag_run),"
            " (SELECT count(*) FROM dag_run WHERE state <> 'success')"
        )
        if (recorded, taken, failed) != (events, events, 0):
            raise RuntimeError(
                f"{events:,} events expected; {recorded:,} recorded, {taken:,} in runs, {failed} runs failed"
            )
        return int(runs)

    def ask(self, query: str) -> Any:
        """The first value of a query; None while the database, or the table, is not there yet."""
        try:
            return self.records.value(query)
        except Exception as error:
            # Either driver's words for "not there yet".
            words = str(error)
            if "unable to open" in words or "no such table" in words or "does not exist" in words:
                return None
            raise

    def log_tail(self, lines: int = 30) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])
