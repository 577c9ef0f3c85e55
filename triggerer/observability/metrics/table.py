"""The table of all metrics. Code, documentation, alert rules and the dashboard use only these metrics."""

from __future__ import annotations

from typing import Final

from triggerer.observability.metrics.instruments import (
    LONG_SECONDS,
    ROWS,
    SINCE_SECONDS,
    Counter,
    Histogram,
    Kind,
    Metric,
)

METRICS: Final[dict[str, Metric]] = {}
"""Metrics by name, in the order of the documentation."""
COUNTERS: Final[list[Counter]] = []
HISTOGRAMS: Final[list[Histogram]] = []

_TRIGGERER: Final = "triggerer"
_SCHEDULER: Final = "scheduler"
_EXECUTOR: Final = "executor"
_ALL: Final = "every part"


def _metric(
    name: str, kind: Kind, source: str, help_: str, *labels: str, otel: str | None = None
) -> Metric:
    metric = METRICS[name] = Metric(name, kind, help_, labels, source, otel)
    return metric


def _gauge(name: str, source: str, help_: str, *labels: str) -> Metric:
    return _metric(name, "gauge", source, help_, *labels)


def _read(name: str, source: str, help_: str, *labels: str, otel: str | None = None) -> Metric:
    """Return a counter whose value a `Reader` returns at each scrape."""
    return _metric(name, "counter", source, help_, *labels, otel=otel)


def _counter(name: str, source: str, help_: str, *labels: str, most: int = 200) -> Counter:
    counter = Counter(_metric(name, "counter", source, help_, *labels), most=most)
    COUNTERS.append(counter)
    return counter


def _histogram(
    name: str,
    source: str,
    help_: str,
    *labels: str,
    bounds: tuple[float, ...] | None = None,
    otel: str | None = None,
) -> Histogram:
    metric = _metric(name, "histogram", source, help_, *labels, otel=otel)
    histogram = Histogram(metric) if bounds is None else Histogram(metric, bounds)
    HISTOGRAMS.append(histogram)
    return histogram


# Streams. Each instance reads these values from the streams that it owns.
MESSAGES_CONSUMED: Final = _read(
    "triggerer_messages_consumed_total",
    _TRIGGERER,
    "Messages that streams have pulled, redelivered ones included.",
    "stream",
    "system",
    otel="messaging.client.consumed.messages",
)
MESSAGES_ADVANCED: Final = _read(
    "triggerer_messages_advanced_total",
    _TRIGGERER,
    "Messages whose outcome the broker has learned.",
    "stream",
)
MESSAGES_RESOLVED: Final = _read(
    "triggerer_messages_resolved_total",
    _TRIGGERER,
    "Messages whose outcome the broker has learned, by outcome: acked, rejected, or failed and delivered again.",
    "stream",
    "outcome",
)
PROCESS_DURATION: Final = _histogram(
    "triggerer_message_process_duration_seconds",
    _TRIGGERER,
    "From the broadcast of a message until the broker has learned its outcome. Each pass over the lanes measures its"
    " oldest message.",
    "stream",
    otel="messaging.process.duration",
)
OPERATION_DURATION: Final = _histogram(
    "triggerer_client_operation_duration_seconds",
    _TRIGGERER,
    "Duration of a call that reports outcomes to the broker. Each pass over the lanes measures its first call.",
    "stream",
    "operation",
    "error_type",
    otel="messaging.client.operation.duration",
)
STREAM_LAG_MESSAGES: Final = _gauge(
    "triggerer_stream_lag_messages",
    _TRIGGERER,
    "Messages at the broker and in memory that are not advanced; absent if the producer cannot count them.",
    "stream",
)
STREAM_LAG_SECONDS: Final = _gauge(
    "triggerer_stream_lag_seconds",
    _TRIGGERER,
    "Age of the oldest message in memory that is not advanced; 0 if there is none.",
    "stream",
)
STREAM_OUTSTANDING: Final = _gauge(
    "triggerer_stream_outstanding_messages",
    _TRIGGERER,
    "Messages that were broadcast and are not advanced.",
    "stream",
)
STREAM_OUTSTANDING_BYTES: Final = _gauge(
    "triggerer_stream_outstanding_bytes",
    _TRIGGERER,
    "Bytes of the outstanding messages; 0 if the producer tells no sizes.",
    "stream",
)
STREAM_PAUSED: Final = _gauge(
    "triggerer_stream_paused",
    _TRIGGERER,
    "1 while the stream, or a lane of it, pulls nothing, by reason.",
    "stream",
    "reason",
)
STREAM_BEHIND: Final = _gauge(
    "triggerer_stream_behind_watchers",
    _TRIGGERER,
    "Watchers that have fallen behind and catch up.",
    "stream",
)
STREAM_EPOCH: Final = _gauge(
    "triggerer_stream_lease_epoch",
    _TRIGGERER,
    "Epoch of the stream's lease; it grows each time an instance claims the stream.",
    "stream",
)
STREAM_RESTARTS: Final = _read(
    "triggerer_stream_restarts_total",
    _TRIGGERER,
    "How often the stream has failed and was opened again.",
    "stream",
)
LANE_OUTSTANDING: Final = _gauge(
    "triggerer_lane_outstanding_messages",
    _TRIGGERER,
    "Outstanding messages of the 20 worst lanes of this instance.",
    "stream",
    "lane",
)

# Watchers and parked messages. The scheduler reads these values from the database, at most every 15 s.
WATCHERS: Final = _gauge("triggerer_watchers", _SCHEDULER, "Watchers by state.", "state")
WATCHER_BEHIND: Final = _gauge(
    "triggerer_watcher_behind_messages",
    _SCHEDULER,
    "Messages that a watcher has yet to receive, for the 50 watchers that are the furthest behind.",
    "asset",
    "watcher",
)
WATCHER_FAILING: Final = _gauge(
    "triggerer_watcher_failing_since_seconds",
    _SCHEDULER,
    "How long a watcher has been failing, for the 50 watchers that have been failing longest.",
    "asset",
    "watcher",
)
PARKED: Final = _gauge(
    "triggerer_parked_messages",
    _SCHEDULER,
    "Stored messages by state: set_aside (parked until an operator decides), or kept for a watcher that catches up.",
    "state",
)
PARKED_BYTES: Final = _gauge("triggerer_parked_bytes", _SCHEDULER, "Bytes of all stored messages.")
PARKED_BOUND: Final = _gauge(
    "triggerer_parked_bound_ratio",
    _SCHEDULER,
    "How full the fullest limit of stored messages is. At 1, lanes wait or messages are dead-lettered.",
)

# Events.
EVENTS_RECORDED: Final = _counter(
    "triggerer_events_recorded_total",
    f"{_TRIGGERER}, {_EXECUTOR}, API",
    "New asset events, by source: watcher, task, or request (a command or the API).",
    "source",
)
EVENTS_REFUSED: Final = _counter(
    "triggerer_events_refused_total",
    _TRIGGERER,
    "Events of watchers that the database refused for good.",
)
RECORD_BATCH: Final = _histogram(
    "triggerer_record_batch_size",
    _TRIGGERER,
    "Events of watchers in one transaction.",
    bounds=ROWS,
)
RECORD_DURATION: Final = _histogram(
    "triggerer_record_duration_seconds",
    _TRIGGERER,
    "Duration of the transactions that record events of watchers.",
)
EVENT_LATENCY: Final = _histogram(
    "triggerer_event_latency_seconds",
    _TRIGGERER,
    "From the publication of a message until its event is durable. If the time of publication is unknown, from the"
    " derivation of the event. Each transaction measures its first event.",
    bounds=SINCE_SECONDS,
)

# Runs.
RUN_DELAY: Final = _histogram(
    "triggerer_run_delay_seconds",
    _EXECUTOR,
    "From the time that a timetable set for a run until the run was queued. Each claim measures its most delayed run.",
    bounds=LONG_SECONDS,
)
RUN_QUEUE: Final = _histogram(
    "triggerer_run_queue_seconds",
    _EXECUTOR,
    "From the queueing of a run until its first task began: the wait for a slot, and then for a Spark session.",
    bounds=LONG_SECONDS,
)
RUNS_CREATED: Final = _counter(
    "triggerer_runs_created_total", _SCHEDULER, "Runs that the scheduler created."
)
RUNS: Final = _counter("triggerer_runs_total", _EXECUTOR, "Runs that ended, by state.", "state")
RUN_DURATION: Final = _histogram(
    "triggerer_run_duration_seconds",
    _EXECUTOR,
    "From the queueing of a run until its end.",
    "state",
    bounds=LONG_SECONDS,
)
_MOST_OF_DAGS: Final = 1_500
DAG_RUNS: Final = _counter(
    "triggerer_dag_runs_total",
    _EXECUTOR,
    "Runs that ended, by DAG: at most 1,500 series, and only with [metrics] dag_labels.",
    "dag",
    "state",
    most=_MOST_OF_DAGS,
)
DAG_RUN_SECONDS: Final = _counter(
    "triggerer_dag_run_seconds_total",
    _EXECUTOR,
    "Durations of the runs that ended, added up, by DAG. Divide by triggerer_dag_runs_total for the mean.",
    "dag",
    "state",
    most=_MOST_OF_DAGS,
)
RUNS_ACTIVE: Final = _gauge(
    "triggerer_runs_active", _SCHEDULER, "Runs that are queued or running.", "state"
)
DAGS: Final = _gauge("triggerer_dags", _SCHEDULER, "DAGs by state.", "state")
DAG_FILES_BROKEN: Final = _gauge(
    "triggerer_dag_files_broken", _SCHEDULER, "DAG files that could not be read in full."
)

# Notifications.
NOTIFICATIONS_SENT: Final = _counter(
    "triggerer_notifications_sent_total",
    _SCHEDULER,
    "Messages to people that a target of [notify] has accepted.",
    "target",
    most=20,
)
NOTIFICATIONS_FAILED: Final = _counter(
    "triggerer_notifications_failed_total",
    _SCHEDULER,
    "Attempts to send a message that a target of [notify] did not accept. The message is sent again later.",
    "target",
    most=20,
)
NOTIFICATIONS_DROPPED: Final = _counter(
    "triggerer_notifications_dropped_total",
    _SCHEDULER,
    "Messages that a target of [notify] did not accept within a day, or that 200 newer messages have replaced.",
    "target",
    most=20,
)

# The service itself.
DATABASE_UP: Final = _gauge(
    "triggerer_database_up", _ALL, "1 if the database answered this process's last request."
)
DATABASE_DURATION: Final = _histogram(
    "triggerer_database_operation_duration_seconds",
    _ALL,
    "Duration of transactions, by kind: transaction, script, step or read.",
    "op",
)
UNKNOWN_OUTCOMES: Final = _counter(
    "triggerer_unknown_outcomes_total",
    _ALL,
    "Commits whose answer did not arrive. They are repeated, and their keys make a repeat harmless.",
)
LOOP_STALLS: Final = _counter(
    "triggerer_loop_stalls_total",
    _TRIGGERER,
    "How often code blocked the event loop for longer than [triggerer] stall_threshold.",
)
LOOP_STALL_SECONDS: Final = _counter(
    "triggerer_loop_stall_seconds_total",
    _TRIGGERER,
    "Total duration of the stalls that triggerer_loop_stalls_total counts.",
)
INSTANCES: Final = _gauge(
    "triggerer_instances", _SCHEDULER, "Instances whose last heartbeat is recent, by kind.", "kind"
)
STREAMS_UNOWNED: Final = _gauge(
    "triggerer_streams_unowned", _SCHEDULER, "Streams with watchers that no instance owns."
)
CLOCK_SKEW: Final = _gauge(
    "triggerer_clock_skew_seconds",
    _SCHEDULER,
    "How far this host's clock is ahead of the database's clock.",
)
OLDEST_EVENT: Final = _gauge(
    "triggerer_retention_oldest_event_seconds", _SCHEDULER, "Age of the oldest asset event."
)
CLEANED_ROWS: Final = _read(
    "triggerer_cleaned_rows_total",
    _SCHEDULER,
    "Rows and logs that cleanings have deleted since the database was created, by kind.",
    "kind",
)
CLEAN_FAILURES: Final = _read(
    "triggerer_clean_failures_total",
    _SCHEDULER,
    "Cleanings that failed since the database was created.",
)
CLEAN_AGE: Final = _gauge(
    "triggerer_clean_age_seconds",
    _SCHEDULER,
    "Time since a cleaning ended without an error; if none ever did, the age of the oldest asset event.",
)
BUILD_INFO: Final = _gauge("triggerer_build_info", _ALL, "1, with the release.", "release")
