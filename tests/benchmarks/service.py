"""Runs the service as a child process, with a configuration and a measurement of its processor time."""

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
"""How `stamped_service` records the commits: by flush or by event. With "none", `triggerer standalone` runs instead."""


class Progress(NamedTuple):
    """Counts that show how far the service has come."""

    highest_event: int
    """The highest id of an event. Without gaps in the ids, it is the number of events."""
    waiting: int
    active_runs: int


class Service:
    """A service in one process tree, with a home below `folder`."""

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
        """A command with its options, such as valgrind, which runs the interpreter."""
        self.extra_path: Path | None = None
        """A folder of modules that are imported before modules of the same name elsewhere."""
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, stamping: Stamping) -> None:
        """Start the service, without waiting until it is ready."""
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
        """Stop the service with SIGTERM, and return the instants that it recorded; empty if it recorded none.

        `queued` maps the primary key of each run to the instant at which the run was queued.

        Raises:
            RuntimeError: The service ended with an error. The message has the end of its log.
        """
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(60)
        if code != 0:
            raise RuntimeError(f"the service ended with {code}:\n{self.log_tail()}")
        if not self._stamps.exists():
            return {}
        stamps: dict[str, Any] = orjson.loads(self._stamps.read_bytes())
        # One scheduler creates all runs, so the order of the stamps is the order of the runs' primary keys.
        pks = [pk for (pk,) in self.records.rows("SELECT id FROM dag_run ORDER BY id")]
        stamps["queued"] = dict(zip(pks, stamps["queued"], strict=True))
        return stamps

    def kill(self) -> None:
        """Kill the service and all of its child processes, if it runs."""
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
        """Return the service's process and its descendants; empty if it has ended."""
        try:
            root = psutil.Process(self.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def cpu_seconds(self) -> float:
        """Return the processor seconds of the process tree so far, including child processes that have ended."""
        total = 0.0
        for process in self.family():
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        return total

    def wait_until(
        self, condition: Callable[[], bool], *, within_s: float, what: str, every_s: float = 0.1
    ) -> None:
        """Wait until a condition is true.

        Raises:
            RuntimeError: The service ended, or the condition was not true in time. The message has the end of the log.
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
        """Read three counts, which cost next to nothing in a database of any size."""
        (counts,) = self.records.rows(
            "SELECT (SELECT coalesce(max(id), 0) FROM asset_event),"
            " (SELECT count(*) FROM queued_asset_event WHERE run_pk IS NULL),"
            " (SELECT count(*) FROM dag_run WHERE state IN ('queued', 'running'))"
        )
        return Progress(*counts)

    def wait_until_done(self, events: int, *, within_s: float) -> int:
        """Wait until ended runs have this number of events; return the number of runs.

        Raises:
            RuntimeError: It took too long, the service ended, a run failed, or the store has another number of events.
        """
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
        """Return the first value of a query; None while the database or the table does not exist."""
        try:
            return self.records.value(query)
        except Exception as error:
            # How the two drivers say that a database or a table is missing.
            words = str(error)
            if "unable to open" in words or "no such table" in words or "does not exist" in words:
                return None
            raise

    def log_tail(self, lines: int = 30) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])
