"""The objects that the commands and the API show. Users' programs read the fields, so their names do not change."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from triggerer.domain.attempts import SparkProgress, TaskProgress

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_View = TypeVar("_View", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class AssetView:
    """An asset, its watchers, and the time of its last event."""

    id: int
    name: str
    uri: str
    group: str
    extra: dict[str, Any]
    declared_in: str | None
    """The DAG file that declares the asset. None: no file declares it."""
    last_event_timestamp: datetime | None
    created_at: datetime | None = None
    watchers: dict[str, int] = field(default_factory=dict)
    """The number of the asset's watchers, by state."""


@dataclass(frozen=True, slots=True)
class AssetEventView:
    """An asset event."""

    id: int
    asset_name: str
    asset_uri: str
    extra: dict[str, Any] | None
    """None: the reader's role may not see the extra."""
    timestamp: datetime
    source_watcher: str | None
    source_dag_id: str | None
    source_run_id: str | None
    source_task_id: str | None
    idempotency_key: str | None
    """The key that identifies the message across redeliveries. None: neither the broker nor the client gave one."""
    partition_key: str | None


@dataclass(frozen=True, slots=True)
class QueuedEventView:
    """An event that waits for a DAG."""

    dag_id: str
    asset_name: str
    asset_uri: str
    asset_event_id: int
    queued_at: datetime
    partition_key: str | None


@dataclass(frozen=True, slots=True)
class BackfillView:
    """A backfill and its progress. Its state is running, done or cancelled."""

    id: int
    dag_id: str
    state: str
    from_date: datetime | None
    """The beginning of the time to fill. `from_date` and `to_date` are None for a backfill of partition keys."""
    to_date: datetime | None
    reprocess: str
    max_active: int
    params: dict[str, Any] | None
    """The parameters that replace the DAG's parameters of the same names. None: no parameters."""
    created_at: datetime
    cancelled_at: datetime | None
    intervals: dict[str, int]
    """How many intervals are pending, started, skipped (a run existed) or cancelled."""
    partition_keys: dict[str, int]
    """How many partition keys are pending, started, skipped or cancelled; empty for a backfill of intervals."""
    runs: dict[str, int]
    """The number of runs that the backfill started, by their present state.

    Runs that a later backfill has queued again are included."""


@dataclass(frozen=True, slots=True)
class DagView:
    """A DAG, the number of events that wait for it, and its newest run."""

    dag_id: str
    path: str
    description: str | None
    tags: list[str]
    schedule: dict[str, Any] | None
    max_active_runs: int
    events_per_run: int | None
    params: dict[str, Any]
    tasks: list[dict[str, Any]]
    is_paused: bool
    is_stale: bool
    file_missing_since: datetime | None
    """Since when the DAG's file is missing, or None if it exists.

    At first a missing file does not count as deleted, because an operator may be replacing it."""
    queued_events: int
    """The number of events that wait for the DAG. Counting stops at 1,000."""
    last_run_id: str | None
    last_run_state: str | None
    start_date: datetime | None = None
    end_date: datetime | None = None
    catchup: bool = False
    min_run_gap: float | None = None
    """In seconds."""
    quiet_period: float | None = None
    """In seconds."""
    depends_on_past: bool = False
    priority: int = 0
    pools: str | None = None
    """Comma-separated."""
    next_run_after: datetime | None = None
    """When the DAG is due next, by its timetable or for its next partition key.

    None: no such instant is known, or the DAG is stale. The instant was computed earlier, for instance at the last run
    or at the last change of the schedule."""
    is_counted_short: bool = False
    """True if more events may wait for the DAG than `queued_events` says."""
    file_warnings: list[dict[str, Any]] = field(default_factory=list)
    """The warnings of the DAG's file: [{"file", "line", "reason"}]."""
    file_error: str | None = None
    """Why the DAG processor or an executor could not load the DAG's file, so that the DAG's runs wait."""


@dataclass(frozen=True, slots=True)
class DagFileView:
    """A file that could not be loaded, could be loaded only in part, or is ignored."""

    path: str
    errors: list[dict[str, Any]]
    """[{"file", "line", "reason"}]. For an ignored file, these are the reasons why it is not loaded."""


@dataclass(frozen=True, slots=True)
class DefinitionCounts:
    """How many objects the DAG files define."""

    dags: int
    watchers: int
    broken_files: int


@dataclass(frozen=True, slots=True)
class TaskRunView:
    """The last try of a task."""

    task_id: str
    state: str
    try_number: int
    started_at: datetime | None
    ended_at: datetime | None
    error: str | None
    progress: TaskProgress | None = None
    """How much of the task's Spark work is done. None: no Spark work was seen, or it was over quickly."""


@dataclass(frozen=True, slots=True)
class LaunchView:
    """Something that an attempt started outside its process: a Spark Connect session, or an application."""

    tag: str
    """The name of the launch at its server or cluster, by which the launch is found again."""
    launcher: str
    """The name of the launcher that started the launch, such as `connect`."""
    task_id: str | None
    """The task that the launch works for. None: it works for all tasks of the attempt."""
    place: str | None
    """The address of the server or cluster where the launch works."""
    external_id: str | None
    """The id of the launch at its place, such as the id of an application."""
    link: str | None
    state: str
    reason: str | None
    seen_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class AttemptView:
    """One attempt of a run."""

    number: int
    """Two attempts may have the same number, if the first does not count towards the limit of attempts.

    For instance, an attempt does not count if its executor was stopped."""
    epoch: int
    """The run's epoch when the attempt was claimed. Two attempts never have the same epoch."""
    state: str
    executor: str
    tag: str
    reason: str | None
    claimed_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    application_id: str | None
    """The external id of the first launch that has an external id."""
    link: str | None
    """The address of a web page about the launch with this id."""
    launches: list[LaunchView]


@dataclass(frozen=True, slots=True)
class RunView:
    """A run."""

    dag_id: str
    run_id: str
    run_type: str
    state: str
    logical_date: datetime | None
    data_interval_start: datetime | None
    data_interval_end: datetime | None
    run_after: datetime
    queued_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    error: str | None
    params: dict[str, Any]
    exit_code: int | None
    attempt: int
    executor: str | None
    log_path: str | None
    partition_key: str | None
    waiting_for: str | None = None
    """The thing or event for which a queued or running run waits, such as `a worker that is free`.

    None: it does not wait.
    """
    waiting_since: datetime | None = None
    progress: SparkProgress | None = None
    """How much of the run's Spark work is done. None: the run is not running, or has no Spark work."""
    asset_event_ids: list[int] = field(default_factory=list)
    """The events that the run took; empty if the caller did not ask for them."""


@dataclass(frozen=True, slots=True)
class WatcherView:
    """A watcher, its trigger's class, its stream, and its host."""

    asset_name: str
    name: str
    trigger: str
    stream: str
    """The stream key as readable text. Two streams may have the same text, but not the same digest."""
    stream_id: str
    """The digest of the stream key."""
    state: str
    error: str | None
    owner: str | None
    kwargs: dict[str, Any]
    path: str
    updated_at: datetime
    behind: int | None
    """The number of messages in the watcher's backlogs. None: unknown."""
    behind_since: datetime | None
    traceback: str | None
    positions: list[PositionView]
    """The watcher's backlogs, by lane."""
    set_aside: int
    """The number of parked messages, which wait until an operator replays or discards them."""
    guarantee: str | None
    """The lowest delivery guarantee that the DAG file accepts. None: it accepts any."""
    owner_seen_at: datetime | None = None
    """The last heartbeat of the instance that owns the stream."""
    lease_ends_at: datetime | None = None
    """When another instance may take the stream over, if the owner sends no heartbeat before."""
    reason: str | None = None
    """Why the state may be out of date, or why no instance hosts the watcher after the stream's owner died."""


@dataclass(frozen=True, slots=True)
class ParkedView:
    """A message that is stored or parked for a watcher."""

    id: int
    asset_name: str
    watcher: str
    lane: str
    idempotency_key: str
    state: str
    failures: int
    error: str | None
    parked_at: datetime


@dataclass(frozen=True, slots=True)
class ParkedMessageView(ParkedView):
    """A stored or parked message with its traceback and content."""

    traceback: str | None
    size_bytes: int
    message: str | None
    """The message as its producer wrote it for the store; Base64 if it is not text.

    None: the reader's role may not see the message."""


@dataclass(frozen=True, slots=True)
class AuditView:
    """A change that a person or a program requested."""

    id: int
    at: datetime
    actor: str
    role: str
    via: str
    """How the actor reached the service, such as `cli` or `token:<id>`; see `triggerer.domain.actors.Actor.via`."""
    action: str
    """The kind of the subject, a dot, and what was done, such as `run.cancel`."""
    subject: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    request_id: str | None


@dataclass(frozen=True, slots=True)
class AilingWatcherView:
    """A watcher that is not running, so that events of its asset may be missing."""

    asset_name: str
    name: str
    state: str
    error: str | None
    reason: str | None = None
    """See `WatcherView.reason`."""


@dataclass(frozen=True, slots=True)
class PositionView:
    """The backlog of a watcher in one lane."""

    lane: str
    position: list[Any] | None
    """`[incarnation, number]`. None for a queue, because the store has the messages of the backlog."""
    behind: int | None
    """The number of messages in the backlog. None: unknown."""
    since: datetime


@dataclass(frozen=True, slots=True)
class TokenView:
    """A token of the HTTP API, without the secret text, which is stored nowhere."""

    id: str
    name: str
    role: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    """The stored time may be up to five minutes too early, so that most requests with the token cause no write."""
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class LaneView:
    """A lane of a stream, as its owner reported it."""

    lane: str
    lag: int | None
    """Messages at the broker that the stream has not advanced past. None: unknown."""
    lag_seconds: float | None
    """The age in seconds of the oldest message in memory that the lane has not advanced past. None: unknown."""
    outstanding: int
    """Messages in memory that were broadcast and that the lane has not advanced past."""
    paused: str | None
    """Why the lane pulls no messages now. None: it is not paused."""


@dataclass(frozen=True, slots=True)
class StreamHistoryView:
    """The figures of a stream's last hour, minute by minute.

    The lists are shorter if the current owner claimed the stream less than an hour ago.
    """

    since: datetime
    """When the first minute began."""
    lag: list[int | None]
    """The highest consumer lag that was seen in each minute. None: the lag was unknown."""
    consumed: list[int | None]
    """The number of messages that came in each minute. The last minute is not over yet. None: unknown."""


@dataclass(frozen=True, slots=True)
class StreamView:
    """A stream, its owner, and what the owner last reported of it."""

    id: str
    """The digest of the stream key."""
    stream: str
    """The readable stream key."""
    owner: str | None
    epoch: int
    lease_ends_at: datetime | None
    watchers: dict[str, int]
    """The number of the stream's watchers, by state."""
    reported_at: datetime | None
    """When the owner reported the fields below. None: it has not reported yet."""
    lag: int | None = None
    """Messages, at the broker or in memory, that the stream has not advanced past. None: the producer cannot tell."""
    lag_seconds: float | None = None
    """The age in seconds of the oldest message in memory that is not advanced past; 0 if there is none."""
    outstanding: int | None = None
    outstanding_bytes: int | None = None
    consumed: int | None = None
    """Messages that the owner has received since it took the stream.

    The fields from here to `restarts` count from that moment.
    """
    advanced: int | None = None
    """Messages that the broker's position has moved past, or that the broker was told to deliver again."""
    rejected: int | None = None
    """Messages that were rejected by at least one watcher, and failed by none."""
    failed: int | None = None
    """Messages that the broker was told to deliver again."""
    restarts: int | None = None
    behind: int | None = None
    """The number of the stream's watchers that have fallen behind."""
    paused: str | None = None
    """Why the stream, or some of its lanes, pulls no messages now, as a sentence. None: nothing is paused."""
    paused_reasons: list[str] = field(default_factory=list)
    """The reasons as constants: `stream_full`, `lane_full`, `slow_watcher`, `parked_bound`, `standing`, `restarting` or
    `stopping`. A lane is standing if its next message failed too often and no dead-letter place accepts it."""
    lane_count: int | None = None
    """The number of lanes that have outstanding messages, or are standing."""
    lanes: list[LaneView] = field(default_factory=list)
    """At most 256 of the lanes that `lane_count` counts.

    Standing lanes come first, then full lanes, then the lanes with the oldest messages."""
    history: StreamHistoryView | None = None


@dataclass(frozen=True, slots=True)
class InstanceView:
    """An instance: one part of the service in one process."""

    id: str
    """`<host>:<pid>:<random>`."""
    kind: str
    state: str
    """running, silent (a heartbeat is missed) or gone."""
    host: str
    pid: int | None
    release: str
    """The release of triggerer that the process runs."""
    started_at: datetime
    heartbeat_at: datetime | None
    lease_ends_at: datetime | None


def view_of(row: object, kind: type[_View], **others: Any) -> _View:
    """Return a view. Its fields come from the row's columns of the same names, except the fields in `others`."""
    names = [one.name for one in fields(kind) if one.name not in others]
    return kind(**{name: getattr(row, name) for name in names}, **others)
