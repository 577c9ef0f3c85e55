"""What may be set: a frozen dataclass for each section, with its defaults and bounds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Field


def _split(value: Any) -> Any:
    return (
        [part.strip() for part in value.split(",") if part.strip()]
        if isinstance(value, str)
        else value
    )


def _pairs(value: Any) -> Any:
    if isinstance(value, str):
        return dict(part.partition("=")[::2] for part in cast("list[str]", _split(value)))
    if isinstance(value, Mapping):
        # Spark takes strings; TOML's true is Spark's "true".
        return {
            key: str(item).lower() if isinstance(item, bool) else str(item)
            for key, item in value.items()
        }
    return value


def _named(placements: dict[str, str]) -> dict[str, str]:
    for name in placements:
        if "." not in name and "/" not in name:
            raise ValueError(f"{name!r} is neither module.Class nor <asset>/<watcher>")
    return placements


def _seconds(value: Any) -> Any:
    # pydantic reads "300" as a number of seconds but "0.5" as ISO 8601.
    return float(value) if isinstance(value, str) and re.fullmatch(r"[\d.]+", value) else value


Seconds = Annotated[timedelta, BeforeValidator(_seconds), Field(gt=timedelta(0))]
SecondsOrZero = Annotated[timedelta, BeforeValidator(_seconds), Field(ge=timedelta(0))]
Count = Annotated[int, Field(gt=0)]
Names = Annotated[tuple[str, ...], BeforeValidator(_split)]
Pairs = Annotated[dict[str, str], BeforeValidator(_pairs)]
Placements = Annotated[
    dict[str, Literal["thread", "process"]], BeforeValidator(_pairs), AfterValidator(_named)
]


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """`[core]`: where things lie, logging and shutdown."""

    home: Path = Path("~/.triggerer")
    """Where the default database, the logs of runs and the service's sockets lie."""
    dags_folder: Path = Path("dags")
    """Relative to `home` where it is the default."""
    allowed_trigger_modules: Names = ()
    """Modules outside entry points and the DAGs folder from which trigger classes may be loaded."""
    log_level: Annotated[str, Field(pattern="^(debug|info|warning|error)$")] = "info"
    log_format: Annotated[str, Field(pattern="^(auto|console|json)$")] = "auto"
    """auto: console on a terminal, JSON elsewhere."""
    shutdown_grace: SecondsOrZero = timedelta(seconds=20)
    """How long work in flight may take to end after SIGTERM before it is cancelled."""


@dataclass(frozen=True, slots=True)
class DatabaseSettings:
    """`[database]`: SQLite in `home` unless a URL says otherwise."""

    url: str = field(default="", repr=False)
    """Empty: SQLite in `home`. May be `env:NAME` or `file:PATH`."""
    commit_timeout: Seconds = timedelta(seconds=30)
    start_timeout: SecondsOrZero = timedelta(seconds=30)
    """How long a starting service waits for a database that does not answer, or is locked."""


@dataclass(frozen=True, slots=True)
class TriggererSettings:
    """`[triggerer]`: bounds of shared streams and of the instance that hosts them."""

    shared_stream_ack_timeout: Seconds = timedelta(seconds=300)
    shared_stream_subscriber_queue_size: Count = 1024
    shared_stream_overflow_grace: SecondsOrZero = timedelta(seconds=5)
    on_failure: Literal["catch_up", "redeliver"] = "catch_up"
    """What becomes of a message of a log that one watcher fails and another takes: the one falls behind and catches up,
    or all are delivered it again ("redeliver")."""
    max_deliveries: Count = 10
    """How often a watcher that catches up fails a message before others are tried; if one passes, it is set aside."""
    parked_at_bound: Literal["hold", "dead_letter"] = "hold"
    """What becomes of a message that is to be set aside while a bound is reached: its lane stands, for that watcher
    ("hold"), or it goes to the producer's dead letters."""
    parked_max_messages: Count = 10_000
    """Set aside for one watcher."""
    parked_max_bytes: Count = 64 * 1024 * 1024
    """Of the messages that are set aside for one watcher."""
    parked_total_bytes: Count = 1024 * 1024 * 1024
    """Of all messages that are set aside."""
    capacity: Count = 1000
    """The most triggers that one instance hosts; what nobody has room for waits, and says so."""
    max_outstanding_events: Count = 20_000
    """Of one shared stream: fanned out and not yet advanced; beyond it the broker is paused."""
    max_outstanding_events_per_lane: Count = 10_000
    """The same of one lane (a Kafka partition); beyond it that lane is paused, or the stream where that cannot be."""
    max_outstanding_bytes: Count = 64 * 1024 * 1024
    """Of the messages of one shared stream that are fanned out and not yet advanced; beyond it the broker is paused."""
    max_outstanding_bytes_per_lane: Count = 32 * 1024 * 1024
    """The same of one lane."""
    lease_duration: Seconds = timedelta(seconds=15)
    """After so long without a heartbeat an instance's streams may be taken over."""
    stall_threshold: SecondsOrZero = timedelta(seconds=0.5)
    """How long the event loop may stand still before that is logged, with whose code it is; 0: never."""
    isolation: Placements = field(default_factory=dict)
    """Triggers that run in a thread or a process of their own, by class path or `<asset>/<watcher>`."""


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """`[scheduler]`: bounds of one pass, and the sweep."""

    max_dagruns_to_create_per_loop: Count = 32
    heartbeat_sec: Seconds = timedelta(seconds=30)
    """Of the sweep that is the safety net; commits wake the scheduler at once."""


@dataclass(frozen=True, slots=True)
class DagProcessorSettings:
    """`[dag_processor]`: how often and how long files are parsed."""

    min_file_process_interval: Seconds = timedelta(seconds=30)
    parse_timeout: Seconds = timedelta(seconds=30)
    removal_grace: SecondsOrZero = timedelta(seconds=10)
    """A file that is missing for so long counts as deleted; until then it may be being replaced."""


@dataclass(frozen=True, slots=True)
class ExecutorSettings:
    """`[executor]`: the worker processes."""

    workers: Count = 2
    lease_duration: Seconds = timedelta(seconds=60)
    """After so long without a heartbeat an executor's runs may be taken over; it has ended them before."""
    prewarm: bool = True
    """Whether Spark is started before the first run asks for it, if a known DAG needs it."""
    broken_file: Literal["hold", "fail"] = "hold"
    """A run whose DAG file does not load stays queued until the file loads ("hold"), or fails ("fail")."""


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """`[spark]`: where sessions come from; `triggerer.worker.spark` checks that the values fit together."""

    mode: str = "local"
    master: str | None = None
    remote: str | None = None
    conf: Pairs = field(default_factory=dict)
    archive_classes: bool = True
    """Whether an archive of Spark's classes is made, once and behind all other work, so that sessions start faster."""


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """`[api]`: accepted, and without effect until the API is there."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8080


SECTIONS: Final[dict[str, type[Any]]] = {
    "core": CoreSettings,
    "database": DatabaseSettings,
    "triggerer": TriggererSettings,
    "scheduler": SchedulerSettings,
    "dag_processor": DagProcessorSettings,
    "executor": ExecutorSettings,
    "spark": SparkSettings,
    "api": ApiSettings,
}
