"""The sections of the configuration: one frozen dataclass each, with defaults and bounds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter

from triggerer.domain.notifications import NOTIFIED
from triggerer.domain.text.known_fields import known_fields
from triggerer.nearest import nearest


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
        # The values of Spark's settings are strings, so TOML's true becomes "true".
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


def _hook_secret(secret: str) -> str:
    if not secret:
        raise ValueError("the secret of a hook must be a text")
    return secret


def _seconds(value: Any) -> Any:
    # An environment variable is text. pydantic reads text as an ISO 8601 duration, and would refuse "30".
    return float(value) if isinstance(value, str) and re.fullmatch(r"[\d.]+", value) else value


_LONGEST_AGE: Final = timedelta(days=36_500)


def _age(value: Any) -> timedelta | None:
    """Return the duration, or None for "never".

    A bare number such as `90` is refused: it would be 90 seconds, but the author probably means 90 days.
    """
    if value == "never":
        return None
    try:
        if not isinstance(value, str) or value.strip().replace(".", "", 1).isdecimal():
            raise ValueError
        age = TypeAdapter(timedelta).validate_python(value)
    except (ValueError, OverflowError):
        raise ValueError('it must be a duration such as "90d" or "PT12H", or "never"') from None
    if not timedelta(0) < age <= _LONGEST_AGE:
        raise ValueError('it must be more than 0 and at most "36500d", or "never"')
    return age


def written_age(age: timedelta | None) -> str:
    """Return an age as the configuration file writes it, such as "90d", "PT12H" or "never"."""
    if age is None:
        return "never"
    if not age % timedelta(days=1):
        return f"{age.days}d"
    if not age % timedelta(hours=1):
        return f"PT{age // timedelta(hours=1)}H"
    return f"PT{age.total_seconds():g}S"


Seconds = Annotated[timedelta, BeforeValidator(_seconds), Field(gt=timedelta(0))]
SecondsOrZero = Annotated[timedelta, BeforeValidator(_seconds), Field(ge=timedelta(0))]
Count = Annotated[int, Field(gt=0)]
Age = Annotated[timedelta | None, BeforeValidator(_age)]
"""A duration such as "90d", or None, which is written "never"."""
Names = Annotated[tuple[str, ...], BeforeValidator(_split)]
Pairs = Annotated[dict[str, str], BeforeValidator(_pairs)]
Placements = Annotated[
    dict[str, Literal["thread", "process"]], BeforeValidator(_pairs), AfterValidator(_named)
]


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """`[core]`: folders, logging and shutdown."""

    home: Path = Path("~/.triggerer")
    """The folder of the default database, the logs of runs and the service's sockets."""
    dags_folder: Path = Path("dags")
    """The folder with the DAG files. The default is relative to `home`."""
    allowed_trigger_modules: Names = ()
    """Modules from which trigger classes are loaded, besides entry points and the DAGs folder."""
    log_level: Annotated[str, Field(pattern="^(debug|info|warning|error)$")] = "info"
    log_format: Annotated[str, Field(pattern="^(auto|console|json)$")] = "auto"
    """auto: short lines on a terminal, JSON elsewhere."""
    shutdown_grace: SecondsOrZero = timedelta(seconds=20)
    """How long the service waits for work in flight after SIGTERM. Work that takes longer is cancelled."""


@dataclass(frozen=True, slots=True)
class DatabaseSettings:
    """`[database]`: the URL of the database, and timeouts."""

    url: str = field(default="", repr=False)
    """The URL of the database; empty means SQLite in `home`. May be `env:NAME` or `file:PATH`."""
    commit_timeout: Seconds = timedelta(seconds=30)
    """The time limit of a commit. After this time the outcome of the commit counts as unknown."""
    start_timeout: SecondsOrZero = timedelta(seconds=30)
    """How long a starting service waits for a database that does not answer or is locked."""


@dataclass(frozen=True, slots=True)
class TriggererSettings:
    """`[triggerer]`: limits of shared streams and of the instance that hosts them."""

    shared_stream_ack_timeout: Seconds = timedelta(seconds=300)
    """A subscriber that has not resolved a message within this time fails the message."""
    shared_stream_subscriber_queue_size: Count = 1024
    """The most messages that wait for one subscriber in memory."""
    shared_stream_overflow_grace: SecondsOrZero = timedelta(seconds=5)
    """A subscriber fails if its full queue pauses the poll for longer than this time. A subscriber that can fall behind
    alone does so without this delay, while a sibling waits for messages."""
    on_failure: Literal["catch_up", "redeliver"] = "catch_up"
    """If one watcher fails a message and another watcher accepts it: with "catch_up", the failing watcher falls behind
    alone and catches up. With "redeliver", the broker delivers the message to all watchers again."""
    max_deliveries: Count = 10
    """After one message has failed this number of times during catch-up, later messages are tried. If one of them
    passes, the failing message gets one more try, and is parked if it fails again."""
    parked_at_bound: Literal["hold", "dead_letter"] = "hold"
    """If a limit `parked_...` below is reached, a watcher's message can be neither parked nor stored. With "hold", the
    message waits: in a log, only this watcher waits; in a queue, the whole stream waits. With "dead_letter", the
    producer dead-letters the message.
    """
    parked_max_messages: Count = 10_000
    """The most messages that are parked for one watcher, including its stored messages of a queue."""
    parked_max_bytes: Count = 64 * 1024 * 1024
    """The most bytes of messages that are parked for one watcher, including its stored messages of a queue."""
    parked_total_bytes: Count = 1024 * 1024 * 1024
    """The limit of the bytes of all parked and stored messages together."""
    capacity: Count = 1000
    """The most triggers that one instance hosts. Further triggers wait, and are shown as waiting."""
    max_outstanding_events: Count = 20_000
    """The limit of outstanding messages of one shared stream. At the limit the poll pauses."""
    max_outstanding_events_per_lane: Count = 10_000
    """The limit of outstanding messages of one lane, such as a Kafka partition. At the limit the lane pauses, or the
    whole stream if the producer cannot pause a lane."""
    max_outstanding_bytes: Count = 64 * 1024 * 1024
    """The limit of the bytes of one stream's outstanding messages. At the limit the poll pauses."""
    max_outstanding_bytes_per_lane: Count = 32 * 1024 * 1024
    """The limit of the bytes of one lane's outstanding messages."""
    lease_duration: Seconds = timedelta(seconds=15)
    """If an instance has no heartbeat for this time, another instance may take over its streams."""
    stall_threshold: SecondsOrZero = timedelta(seconds=0.5)
    """If code blocks the event loop for longer than this, the service logs which code blocks. 0: off."""
    isolation: Placements = field(default_factory=dict)
    """Triggers that run in a thread or a process of their own: class path or `<asset>/<watcher>` = "thread" or
    "process"."""


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """`[scheduler]`: limits and intervals of the scheduler."""

    max_dagruns_to_create_per_loop: Count = 32
    """The most runs that the scheduler creates in one transaction."""
    heartbeat_sec: Seconds = timedelta(seconds=30)
    """Seconds between two searches for due DAGs. Usually a commit wakes the scheduler before that."""


@dataclass(frozen=True, slots=True)
class DagProcessorSettings:
    """`[dag_processor]`: intervals and time limits for reading the DAG files."""

    min_file_process_interval: Seconds = timedelta(seconds=30)
    """Seconds between two scans of the folder. Scans find changes that the operating system does not report."""
    parse_timeout: Seconds = timedelta(seconds=30)
    """If the import of a file takes longer, the import is stopped, and the file counts as broken."""
    removal_grace: SecondsOrZero = timedelta(seconds=10)
    """A missing file counts as deleted after this time. A deployment may delete a file and write it again."""


@dataclass(frozen=True, slots=True)
class ExecutorSettings:
    """`[executor]`: the worker processes."""

    workers: Count = 2
    """The number of worker processes. Each executes one run at a time."""
    lease_duration: Seconds = timedelta(seconds=60)
    """If an executor has no heartbeat for this time, another executor may take over its runs. An executor that cannot
    reach the database ends its runs before that."""
    prewarm: bool = True
    """True: if a DAG needs Spark, start Spark before the first run."""
    broken_file: Literal["hold", "fail"] = "hold"
    """A run whose DAG file does not load stays queued until the file loads ("hold"), or fails ("fail")."""
    log_address: str = ""
    """`host:port` where the API on another machine can read the logs of this executor's runs. Port 0: a free port.
    Empty: the executor does not listen. An address needs PostgreSQL."""


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """`[spark]`: how to get a Spark session. `triggerer.worker.spark` checks that the values fit together."""

    mode: str | None = None
    """`local`, `classic`, `connect` or `submit`. None: `connect` if `remote` is set, else `local` or `classic`,
    depending on the master."""
    master: str | None = None
    """The URL of the master, such as `spark://host:7077`. None: `spark.master` in `conf`, or else `local[*]`."""
    remote: str | None = field(default=None, repr=False)
    """The URL of a Spark Connect server, such as `sc://host:15002`. May be `env:NAME` or `file:PATH`."""
    conf: Pairs = field(default_factory=dict)
    """Settings of Spark by their names, such as `spark.driver.memory`."""
    cluster_patience: SecondsOrZero = timedelta(seconds=60)
    """How long a run waits for a Spark master or a Spark Connect server that does not answer."""
    archive_classes: bool = True
    """Whether to build an archive of Spark's classes, once and in the background, so that sessions start faster."""

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON, which the service sends to a worker process."""
        return {**asdict(self), "cluster_patience": self.cluster_patience.total_seconds()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> SparkSettings:
        patience = timedelta(seconds=values.get("cluster_patience", 60.0))
        return cls(**{**known_fields(cls, values), "cluster_patience": patience})


@dataclass(frozen=True, slots=True)
class OidcSettings:
    """`[api.oidc]`: sign-in by an OpenID Connect provider. Empty `issuer`: off."""

    issuer: str = ""
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    """The secret of `client_id` at the provider. May be `env:NAME` or `file:PATH`."""
    role_claim: str = "groups"
    """The claim of the ID token with the person's groups or roles: a text or a list."""
    roles: Pairs = field(default_factory=dict)
    """The role (viewer, operator or admin) for each value of the claim. The highest of a person's roles counts. Without
    a role, the person is refused."""


@dataclass(frozen=True, slots=True)
class HookSettings:
    """`[api.hooks.<name>]`: a webhook that sends CloudEvents without a token, signed by a secret."""

    asset: str
    """The asset that gets the events."""
    secret: Annotated[str, AfterValidator(_hook_secret)] = field(repr=False)
    """The key of the HMAC that signs each body. May be `env:NAME` or `file:PATH`."""


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """`[api]`: the HTTP API and the web page."""

    host: str = "127.0.0.1"
    """The address to listen on. If it is no loopback address, `tls_certificate` or `behind_proxy` is needed."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """The port to listen on. 0: a free port, which the file `api-address` in `home` names."""
    start: Literal["first_request", "eager"] = "first_request"
    """When `triggerer standalone` starts the process of the API: at the first connection, or at once."""
    allowed_hosts: Names = ()
    """Host names by which browsers and clients reach the API, besides `localhost` and the loopback addresses."""
    behind_proxy: bool = False
    """True: a proxy in front of the API ends TLS, and sets X-Forwarded-Proto, -Host, -For and -Prefix."""
    tls_certificate: Path | None = None
    """A PEM file with the certificate chain, for TLS without a proxy."""
    tls_key: Path | None = None
    """A PEM file with the certificate's key, without a password. None: the key is in the file of the certificate."""
    payloads: Annotated[str, Field(pattern="^(viewer|operator|admin)$")] = "viewer"
    """The lowest role that sees payloads: the extra of events, parked messages and logs."""
    rate_limit: Count = 20
    """The limit of one token's reads per second, on average. The limit of its writes is 2.5 times as high."""
    oidc: OidcSettings = field(default_factory=OidcSettings)
    hooks: dict[str, HookSettings] = field(default_factory=dict)
    """Webhooks by name."""


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """`[metrics]`: the address at which each process serves its metrics, and answers checks of its health."""

    host: str = "127.0.0.1"
    """The address to listen on. Requests need no token, so use another address only if strangers cannot reach it."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """The port to listen on. 0: no port. Then only the API and a socket in `home` answer `/metrics`, `/livez` and
    `/readyz`."""
    dag_labels: bool = False
    """Whether to count the runs of each DAG. This adds at most 3,000 time series, which is enough for 500 DAGs."""


def _bucket_url(url: str) -> str:
    if url and not re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^?#]*)?", url):
        raise ValueError("must be s3://BUCKET or s3://BUCKET/PREFIX")
    return url


def _known_events(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in NOTIFIED:
            meant = nearest(name, NOTIFIED, cutoff=0)
            known = ", ".join(NOTIFIED)
            raise ValueError(f"it may name {known} (did you mean {meant!r}?)")
    return names


@dataclass(frozen=True, slots=True)
class NotifySettings:
    """`[notify]`: notifications of people about failures."""

    urls: Names = field(default=(), repr=False)
    """The targets, as URLs of Apprise. Each may be `env:NAME` or `file:PATH`. Empty: nobody is notified."""
    on: Annotated[Names, AfterValidator(_known_events)] = NOTIFIED
    """The events to notify about: `watcher_failing`, `parked` and `run_failed`."""
    page: str = ""
    """The URL of the web page, for links in the messages. Empty: the address in `api-address`, if the API runs in the
    same `home`."""


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """`[retention]`: the age at which the scheduler's process deletes data, and the bounds of the database.

    Older events stay while they wait for a DAG, while a run that took or emitted them is stored, or
    while their messages may be delivered again. The newest event of each asset stays, too.
    """

    events: Age = timedelta(days=90)
    """The age at which asset events are deleted. None: never."""
    runs: Age = timedelta(days=90)
    """The time from a run's end until the run is deleted, with its tasks and its log. None: never."""
    logs: Age = timedelta(days=30)
    """The time from a run's end until its log is deleted, even if the run stays. None: the log is deleted with the run.
    """
    audit: Age = timedelta(days=400)
    """The age at which rows of the audit are deleted. None: never."""
    parked: Age = None
    """The age at which parked messages are deleted. None: never."""
    max_events: Count | None = None
    """If there are more asset events than this, the oldest tenth is deleted with its runs, even
    before the age `events`. None: never."""
    max_bytes: Count | None = None
    """If the database has more bytes than this, the oldest tenth of the events is deleted with its
    runs. None: never."""


@dataclass(frozen=True, slots=True)
class LogsSettings:
    """`[logs]`: the logs of runs."""

    max_bytes: Annotated[int, Field(ge=64 * 1024)] = 256 * 1024 * 1024
    """The most bytes of one run's log. A longer log keeps its beginning and its end."""
    ship: Annotated[str, AfterValidator(_bucket_url)] = ""
    """Where to copy the log of each ended run: `s3://BUCKET/PREFIX`. Empty: logs stay on the executor's machine."""


SECTIONS: Final[dict[str, type[Any]]] = {
    "core": CoreSettings,
    "database": DatabaseSettings,
    "triggerer": TriggererSettings,
    "scheduler": SchedulerSettings,
    "dag_processor": DagProcessorSettings,
    "executor": ExecutorSettings,
    "spark": SparkSettings,
    "api": ApiSettings,
    "metrics": MetricsSettings,
    "notify": NotifySettings,
    "retention": RetentionSettings,
    "logs": LogsSettings,
}
