"""The settings of an executor. The service makes them from the configuration, which the executor does not read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from triggerer.config.sections import LogsSettings
from triggerer.plugins import DagsFolder

LONGEST_CALLBACK: Final = timedelta(seconds=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSettings:
    """How an executor executes runs."""

    home: Path
    """The service's own directory. Logs of runs are below it."""
    dags_folder: Path
    workers: int = 2
    """The number of slots, and so the most runs at once. A slot's worker starts when it is first needed."""
    pools: Mapping[str, int] = field(default_factory=dict)
    """How many runs each pool admits at the same time."""
    spark: Mapping[str, Any] = field(default_factory=dict)
    """The settings of `[spark]` as JSON, see `SparkSettings.to_json`."""
    prewarm: bool = True
    """True: open a Spark session in advance if a DAG needs one."""
    file_patience: timedelta = timedelta(seconds=10)
    """How long a run waits for a missing DAG file, because a deployment may be replacing the file."""
    holds_broken: bool = False
    """True: a run stays queued until its DAG file loads. False: a run whose file does not load fails."""
    cancel_grace: timedelta = timedelta(seconds=5)
    """The time from SIGTERM to SIGKILL for a cancelled run."""
    timeout_grace: timedelta = timedelta(seconds=10)
    """If a task outlives its own timeout by more than this time, its process is killed."""
    callback_timeout: timedelta = LONGEST_CALLBACK
    """The time for all callbacks of one run together."""
    shutdown_grace: timedelta = timedelta(seconds=5)
    """The time that running runs have to end when the executor is cancelled."""
    sweep_every: timedelta = timedelta(seconds=10)
    """The time between two sweeps."""
    log_max_bytes: int = LogsSettings().max_bytes
    """The most bytes of one run's log on the disk."""
    counts_dags: bool = False
    """True: the metrics count the runs of each DAG, too."""

    def for_worker(self) -> dict[str, Any]:
        """Return the settings that each worker process receives at its start, as JSON."""
        return {
            "home": str(self.home.resolve()),
            # Keep symbolic links in the path, because each deployment changes their targets.
            "dags_folder": str(DagsFolder(self.dags_folder).root),
            "spark": dict(self.spark),
            "file_patience_s": self.file_patience.total_seconds(),
            "holds_broken": self.holds_broken,
            "log_max_bytes": self.log_max_bytes,
        }
