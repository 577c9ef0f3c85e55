"""The objects that the commands and the API show. Section 9 of the contract fixes the names of the fields."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from triggerer.domain.attempts import Progress, TaskProgress

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_View = TypeVar("_View", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class AssetView:
    """An asset, the file that declares it (None: no file), and the time of its last event."""

    id: int
    name: str
    uri: str
    group: str
    extra: dict[str, Any]
    declared_in: str | None
    last_event_timestamp: datetime | None
    created_at: datetime | None = None
    watchers: dict[str, int] = field(default_factory=dict)
    """The number of its watchers by state."""


@dataclass(frozen=True, slots=True)
class AssetEventView:
    """An asset event. `idempotency_key` is None if the broker gave none."""

    id: int
    asset_name: str
    asset_uri: str
    extra: dict[str, Any] | None
    """None: hidden from the reader's role."""
    timestamp: datetime
    source_watcher: str | None
    source_dag_id: str | None
    source_run_id: str | None
    source_task_id: str | None
    idempotency_key: str | None
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
    """None, like `to_date`, for a backfill of partition keys."""
    to_date: datetime | None
    reprocess: str
    max_active: int
    params: dict[str, Any] | None
    """The parameters that replace the DAG's parameters of the same names. None: no parameters."""
    created_at: datetime
    cancelled_at: datetime | None
    intervals: dict[str, int]
    """How many are pending, started, skipped (a run existed) or cancelled."""
    partition_keys: dict[str, int]
    """How many partition keys are pending, started, skipped or cancelled, if it is a backfill of keys."""
    runs: dict[str, int]
    """The present states of the runs that it started, including runs that a later backfill has repeated."""


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
    """Set while its file is missing. It does not count as deleted yet, because somebody may be replacing it."""
    queued_events: int
    """Counting stops at 1,000."""
    last_run_id: str | None
    last_run_state: str | None
    start_date: datetime | None = None
    end_date: datetime | None = None
    catchup: bool = False
    min_run_gap: float | None = None
    """Seconds, like the quiet period."""
    quiet_period: float | None = None
    depends_on_past: bool = False
    priority: int = 0
    pools: str | None = None
    """Comma-separated."""
    next_run_after: datetime | None = None
    """When its timetable makes it due next, computed at the last run or change. None: never, or the DAG is stale."""
    is_counted_short: bool = False
    """True if more events may be queued than were counted."""
    file_warnings: list[dict[str, Any]] = field(default_factory=list)
    """The warnings of its file: [{"file", "line", "reason"}]."""
    file_error: str | None = None
    """Why the DAG processor, or an executor, could not load its file, so that its runs wait."""


@dataclass(frozen=True, slots=True)
class DagFileView:
    """A file that could not be read in full; errors are [{"file", "line", "reason"}]."""

    path: str
    errors: list[dict[str, Any]]


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
    """How far its Spark work is, or how far it came. None: no Spark work was seen, or it was over quickly."""


@dataclass(frozen=True, slots=True)
class LaunchView:
    """Something that an attempt started outside its process."""

    tag: str
    launcher: str
    task_id: str | None
    """None: it serves the whole attempt."""
    place: str | None
    external_id: str | None
    """Its id in its place, such as the id of an application."""
    link: str | None
    state: str
    reason: str | None
    seen_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class AttemptView:
    """One attempt of a run."""

    number: int
    """Two attempts have the same number if the first one did not count."""
    epoch: int
    state: str
    executor: str
    tag: str
    reason: str | None
    claimed_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    application_id: str | None
    """The id of the first launch that has one."""
    link: str | None
    """The address of a page about that launch."""
    launches: list[LaunchView]


@dataclass(frozen=True, slots=True)
class RunView:
    """A run. `asset_event_ids` is empty unless it was requested."""

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
    """The reason why a queued or running run waits, such as a free worker or its file. None: it does not wait."""
    waiting_since: datetime | None = None
    progress: Progress | None = None
    """How far its Spark work is. None: it is not running, or has no Spark work."""
    asset_event_ids: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class WatcherView:
    """A watcher, its trigger's class, its stream, and its host."""

    asset_name: str
    name: str
    trigger: str
    stream: str
    """The readable stream key. Two streams may share it."""
    stream_id: str
    """The digest of the stream key."""
    state: str
    error: str | None
    owner: str | None
    kwargs: dict[str, Any]
    path: str
    updated_at: datetime
    behind: int | None
    """Messages that it has yet to receive. None: unknown."""
    behind_since: datetime | None
    traceback: str | None
    positions: list[PositionView]
    """Its backlogs, by lane."""
    set_aside: int
    """Messages that are set aside until somebody replays or discards them."""
    guarantee: str | None
    """The least guarantee that the DAG file asks of the trigger."""
    owner_seen_at: datetime | None = None
    """The last heartbeat of its owner."""
    lease_ends_at: datetime | None = None
    """When another instance may take over, unless the owner sends a heartbeat before."""
    reason: str | None = None
    """Why the state may be out of date, or why no instance hosts the watcher after its owner died."""


@dataclass(frozen=True, slots=True)
class ParkedView:
    """A message that is parked for a watcher."""

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
    """A parked message with its traceback and content."""

    traceback: str | None
    size_bytes: int
    message: str | None
    """As its producer dumped it; Base64 if it is not text. None: hidden from the reader's role."""


@dataclass(frozen=True, slots=True)
class AuditView:
    """A change that a person or a program asked for."""

    id: int
    at: datetime
    actor: str
    role: str
    via: str
    """`cli`, `token:<id>` or `session:<id>`."""
    action: str
    """Such as `run.cancel`: the kind of the subject, and what was done."""
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
    """None for a queue, whose messages are in the store."""
    behind: int | None
    since: datetime


@dataclass(frozen=True, slots=True)
class TokenView:
    """A token of the HTTP API. The token itself is stored nowhere."""

    id: str
    name: str
    role: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    """Exact to five minutes."""
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class LaneView:
    """A lane of a stream, as its owner reported it."""

    lane: str
    lag: int | None
    """Messages at the broker that the stream has not advanced past. None: unknown."""
    lag_seconds: float | None
    outstanding: int
    paused: str | None
    """Why the lane is paused. None: it is not."""


@dataclass(frozen=True, slots=True)
class StreamHistoryView:
    """The last hour of a stream, minute by minute, as far as its present owner has seen it."""

    since: datetime
    """When the first minute began."""
    lag: list[int | None]
    """The highest lag that was seen in each minute. None: it was unknown."""
    consumed: list[int | None]
    """The messages that came in each minute. The last minute is not over."""


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
    """The number of its watchers by state."""
    reported_at: datetime | None
    """When the owner reported the fields below. None: it has not reported yet."""
    lag: int | None = None
    """Messages at the broker and in memory that are not advanced. None: the producer cannot tell."""
    lag_seconds: float | None = None
    """The age of the oldest message in memory that is not advanced; 0 if there is none."""
    outstanding: int | None = None
    outstanding_bytes: int | None = None
    consumed: int | None = None
    """Messages since the owner has the stream."""
    advanced: int | None = None
    """Messages up to which the broker's position has moved, or that the broker was told to deliver again."""
    rejected: int | None = None
    """Messages that a watcher rejected and none failed."""
    failed: int | None = None
    """Messages that the broker was told to deliver again."""
    restarts: int | None = None
    behind: int | None = None
    """Watchers that have fallen behind."""
    paused: str | None = None
    """Why the stream, or a part of it, pulls nothing for now. None: nothing is paused."""
    paused_reasons: list[str] = field(default_factory=list)
    """`stream_full`, `lane_full`, `slow_watcher`, `parked_bound`, `standing`, `restarting` or `stopping`."""
    lane_count: int | None = None
    """Lanes with outstanding messages, and standing lanes."""
    lanes: list[LaneView] = field(default_factory=list)
    """The worst lanes first, at most 256."""
    history: StreamHistoryView | None = None


@dataclass(frozen=True, slots=True)
class InstanceView:
    """A process of the service."""

    id: str
    """`<host>:<pid>:<random>`."""
    kind: str
    state: str
    """running, silent (a heartbeat is missed) or gone."""
    host: str
    pid: int | None
    release: str
    """The release of its code."""
    started_at: datetime
    heartbeat_at: datetime | None
    lease_ends_at: datetime | None


def view_of(row: object, kind: type[_View], **others: Any) -> _View:
    """Return a view with the row's fields of the same names, and `others`."""
    names = [one.name for one in fields(kind) if one.name not in others]
    return kind(**{name: getattr(row, name) for name in names}, **others)
