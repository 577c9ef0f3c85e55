"""The content of DAG files as plain values, which the parser process sends as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, NamedTuple


class Problem(NamedTuple):
    """An error or a warning about a file, with its line if that is known."""

    file: str
    line: int | None
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that the column `dag_file.errors` stores."""
        return self._asdict()

    def __str__(self) -> str:
        location = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{location}: {self.reason}"


class WatcherKey(NamedTuple):
    """The identity of a watcher."""

    asset_name: str
    asset_uri: str
    name: str


@dataclass(frozen=True, slots=True)
class ParsedAsset:
    """An asset that a file names. `location` is `file:line`, for people."""

    name: str
    uri: str
    group: str
    extra: dict[str, Any]
    location: str


@dataclass(frozen=True, slots=True)
class ParsedWatcher:
    """A watcher that a file defines. Its trigger can be made again from `classpath` and `kwargs`."""

    asset_name: str
    asset_uri: str
    name: str
    location: str
    classpath: str
    kwargs: dict[str, Any]
    trigger_digest: str
    stream_digest: str
    stream_key: str
    guarantee: str | None = None
    """The weakest `Guarantee` that the watcher accepts; None: any. `trigger_digest` includes this value."""

    @property
    def key(self) -> WatcherKey:
        return WatcherKey(self.asset_name, self.asset_uri, self.name)


@dataclass(frozen=True, slots=True)
class ParsedDag:
    """A DAG. `triggerer.domain.schedules` writes `schedule`, and the DAG processor writes `tasks`."""

    dag_id: str
    location: str
    description: str | None
    tags: list[str]
    schedule: dict[str, Any] | None
    max_active_runs: int
    events_per_run: int | None
    params: dict[str, Any]
    tasks: list[dict[str, Any]]
    is_paused_upon_creation: bool
    callbacks: str | None = None
    start_date: datetime | None = None
    end_date: datetime | None = None
    catchup: bool = False
    min_run_gap: float | None = None
    """The least time between two runs, in seconds."""
    quiet_period: float | None = None
    """Queued events start a run only once no further event has arrived for this time, in seconds."""
    depends_on_past: bool = False
    priority: int = 0
    pools: tuple[str, ...] = ()
    """The pools that the DAG's tasks name, sorted."""


@dataclass(frozen=True, slots=True)
class ParsedFile:
    """The definitions of one file, or the reason why it cannot be read."""

    path: str
    parse_seconds: float
    dags: tuple[ParsedDag, ...] = ()
    assets: tuple[ParsedAsset, ...] = ()
    aliases: tuple[str, ...] = ()
    watchers: tuple[ParsedWatcher, ...] = ()
    broken_watchers: tuple[WatcherKey, ...] = ()
    """Watchers with an error. Their stored definitions stay in force."""
    errors: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()
    imports: tuple[str, ...] = ()
    """The files of the folder that this file imports."""
    is_broken: bool = False
    """True if the whole file is unusable. An error of a single watcher does not break the file."""

    def to_json(self) -> dict[str, Any]:
        """Return the file as lists, mappings and plain values."""
        value = asdict(self)
        for name in ("broken_watchers", "errors", "warnings"):
            value[name] = [list(item) for item in value[name]]
        return value
