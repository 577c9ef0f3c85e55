"""Renders the generated files of monitoring: the pages of metrics and log events, and the dashboard."""

from __future__ import annotations

import json
from typing import Any, Final

from tests.reference.log_events import log_events
from triggerer.observability.metrics.table import METRICS

_GENERATED: Final = "<!-- Written by `python -m tests.reference`. Do not edit. -->"
_STREAM: Final = '{stream=~"$stream"}'
_DAG: Final = 'dag=~"$dag"'
_RATE: Final = "$__rate_interval"


_NOT_MEASURED: Final = (
    (
        "the duration of receiving",
        "`triggerer_messages_consumed_total`, `triggerer_stream_restarts_total`",
        "a receive mostly waits for messages, so its duration says nothing; its failure restarts the stream",
    ),
    (
        "separate figures for commit, delete and settle",
        "`triggerer_client_operation_duration_seconds`",
        "each broker has one call that tells it the outcome: `operation` is always `advance`",
    ),
    (
        "messages that a watcher misses",
        "`triggerer_watcher_behind_messages`",
        "a message has one outcome for its stream, and the backlog belongs to the watcher",
    ),
    (
        "every watcher, run, host",
        "`triggerer watchers list`, `runs list`",
        "their number has no limit; only the 50 worst watchers have series",
    ),
    (
        "histograms of each DAG",
        "`triggerer_dag_run_seconds_total`",
        "fourteen buckets of 500 DAGs are too many series; the mean is the sum divided by the runs",
    ),
)


def metrics_page() -> str:
    """Render the table of metrics."""
    lines = [
        "# Metrics",
        "",
        _GENERATED,
        "",
        "Each process serves `/metrics` in Prometheus' format at `[metrics] host` and `port`. Without a port, the",
        "API serves the metrics of `triggerer standalone`. Counters increase once for each batch. A scrape asks",
        "neither the database nor a broker: the scheduler reads the database for the next scrape, and only while",
        "somebody scrapes.",
        "",
        "An instance has series for 50 streams, and adds up the others in a series `other`. Other labels have such a",
        "limit too. Several schedulers serve equal gauges of the database, so let queries take the maximum. The",
        "Prometheus client's metrics `process_*` and `python_*` are served too. `deploy/monitoring/` has alert rules",
        "and a dashboard for Grafana.",
        "",
        "| Metric | Labels | Served by | Meaning |",
        "|---|---|---|---|",
    ]
    for metric in METRICS.values():
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "—"
        lines.append(f"| `{metric.name}` | {labels} | {metric.source} | {metric.help} |")
    lines += [
        "",
        "Names of OpenTelemetry's semantic conventions, where there is one:",
        "",
        "| Metric | OpenTelemetry |",
        "|---|---|",
    ]
    lines += [f"| `{one.name}` | `{one.otel}` |" for one in METRICS.values() if one.otel]
    lines += [
        "",
        "## What the metrics do not show",
        "",
        "| You may look for | Look at | Reason |",
        "|---|---|---|",
        *(f"| {sought} | {found} | {reason} |" for sought, found, reason in _NOT_MEASURED),
        "",
        "## Probes",
        "",
        "| Path | Answers |",
        "|---|---|",
        "| `/livez` | 200 if the event loop turns within half a second; else 503, with what blocks it |",
        "| `/readyz` | 200 after the process has started, while its leases are valid; else 503, with what is missing |",
        "| `/health` of the API | each part with its heartbeat, as `triggerer health` shows it |",
        "",
        "Neither `/livez` nor `/readyz` asks the database: an outage of the database must not restart every process.",
    ]
    return "\n".join(lines) + "\n"


def log_page() -> str:
    """Render the table of log events."""
    lines = [
        "# Log events",
        "",
        _GENERATED,
        "",
        "The service logs one JSON object per line, see [Read the logs](../howto/read-the-logs.md). The value of",
        "the key `event` is one of the texts below. The texts do not change within a release. `…` stands for a name",
        "or a number. Every line also has `level`, `timestamp` and `logger`. The level `debug` is not listed.",
        "",
        "| Level | Event | Other keys |",
        "|---|---|---|",
    ]
    for one in log_events():
        keys = ", ".join(f"`{field}`" for field in one.fields) or "—"
        event = one.event.replace("|", "\\|")
        lines.append(f"| {one.level} | {event} | {keys} |")
    return "\n".join(lines) + "\n"


def _rate(name: str, by: str, selector: str = "") -> str:
    return f"sum by ({by}) (rate({name}{selector}[{_RATE}]))"


def _quantile(quantile: str, name: str, selector: str = "", by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({quantile}, sum by ({labels}) (rate({name}_bucket{selector}[{_RATE}])))"


# Each row of the dashboard has a title and panels. A panel has a title, a unit, a list of queries with their legends,
# and a description.
ROWS: Final[list[tuple[str, list[tuple[str, str, list[tuple[str, str]], str]]]]] = [
    (
        "Is it keeping up?",
        [
            (
                "Messages in",
                "ops",
                [(_rate("triggerer_messages_consumed_total", "stream", _STREAM), "{{stream}}")],
                "Messages that streams pull, per second.",
            ),
            (
                "Lag in seconds",
                "s",
                [(f"max by (stream) (triggerer_stream_lag_seconds{_STREAM})", "{{stream}}")],
                "Age of the oldest message that is not advanced.",
            ),
            (
                "Lag in messages",
                "short",
                [(f"sum by (stream) (triggerer_stream_lag_messages{_STREAM})", "{{stream}}")],
                "Messages at the broker and in memory, if the producer knows their number.",
            ),
            (
                "Events and runs",
                "ops",
                [
                    (_rate("triggerer_events_recorded_total", "source"), "events: {{source}}"),
                    (_rate("triggerer_runs_total", "state"), "runs: {{state}}"),
                ],
                "New asset events and ended runs, per second.",
            ),
        ],
    ),
    (
        "Errors",
        [
            (
                "Watchers that do not run",
                "short",
                [('max by (state) (triggerer_watchers{state!="running"})', "{{state}}")],
                "Failing, catching up or waiting for an instance.",
            ),
            (
                "Messages not accepted",
                "ops",
                [
                    (
                        _rate(
                            "triggerer_messages_resolved_total",
                            "outcome",
                            '{outcome!="acked", stream=~"$stream"}',
                        ),
                        "{{outcome}}",
                    )
                ],
                "Rejected messages, and failed ones that the broker delivers again.",
            ),
            (
                "Parked messages",
                "short",
                [("max by (state) (triggerer_parked_messages)", "{{state}}")],
                "set_aside waits for a person; kept waits for its watcher.",
            ),
            (
                "Restarts and broken files",
                "short",
                [
                    (
                        f"sum by (stream) (increase(triggerer_stream_restarts_total{_STREAM}[{_RATE}]))",
                        "restarts: {{stream}}",
                    ),
                    ("max(triggerer_dag_files_broken)", "broken DAG files"),
                ],
                "Streams that failed and were opened again, and DAG files with errors.",
            ),
        ],
    ),
    (
        "How late?",
        [
            (
                "Message to durable event, p99",
                "s",
                [
                    (
                        _quantile(
                            "0.99", "triggerer_message_process_duration_seconds", _STREAM, "stream"
                        ),
                        "{{stream}}",
                    )
                ],
                "From a message's broadcast until the broker has its outcome. Each pass measures its oldest message.",
            ),
            (
                "Runs: delay and queue, p99",
                "s",
                [
                    (_quantile("0.99", "triggerer_run_delay_seconds"), "due to queued"),
                    (_quantile("0.99", "triggerer_run_queue_seconds"), "queued to first task"),
                ],
                "How late runs are created, and how long they wait for their first task.",
            ),
            (
                "Publication to durable event, p99",
                "s",
                [(_quantile("0.99", "triggerer_event_latency_seconds"), "all streams")],
                "From a message's publication until its event is durable; hours after an outage or during catch-up.",
            ),
            (
                "Database, p99",
                "s",
                [
                    (
                        _quantile("0.99", "triggerer_database_operation_duration_seconds", by="op"),
                        "{{op}}",
                    )
                ],
                "Duration of transactions.",
            ),
        ],
    ),
    (
        "Room left",
        [
            (
                "Outstanding messages",
                "short",
                [
                    (
                        f"sum by (stream) (triggerer_stream_outstanding_messages{_STREAM})",
                        "{{stream}}",
                    )
                ],
                "Messages that were broadcast and are not advanced; [triggerer] max_outstanding_events bounds them.",
            ),
            (
                "Bound of parked messages",
                "percentunit",
                [("max(triggerer_parked_bound_ratio)", "fullest bound")],
                "At 100 % lanes wait, or messages are dead-lettered.",
            ),
            (
                "Instances and runs",
                "short",
                [
                    ("max by (kind) (triggerer_instances)", "{{kind}}"),
                    ("max by (state) (triggerer_runs_active)", "runs {{state}}"),
                ],
                "Live instances by kind, and the runs that are queued or running.",
            ),
            (
                "Age of the data",
                "s",
                [
                    ("max(triggerer_retention_oldest_event_seconds)", "oldest event"),
                    ("max(triggerer_clean_age_seconds)", "since a cleaning"),
                ],
                "The oldest asset event, and the last cleaning that ended without an error.",
            ),
        ],
    ),
    (
        "By DAG, with [metrics] dag_labels",
        [
            (
                "Failed runs",
                "short",
                [
                    (
                        f'sum by (dag) (increase(triggerer_dag_runs_total{{state="failed", {_DAG}}}[{_RATE}]))',
                        "{{dag}}",
                    )
                ],
                "Runs that failed, by DAG.",
            ),
            (
                "Mean duration of a run",
                "s",
                [
                    (
                        " / ".join(
                            _rate(f"triggerer_dag_{name}_total", "dag", f"{{{_DAG}}}")
                            for name in ("run_seconds", "runs")
                        ),
                        "{{dag}}",
                    )
                ],
                "From the queueing of a run until its end, by DAG.",
            ),
        ],
    ),
]


def dashboard() -> str:
    """Render the dashboard of Grafana."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"h": 1, "w": 24, "x": 0, "y": top},
                "panels": [],
            }
        )
        width = 24 // len(row)
        for place, (name, unit, targets, description) in enumerate(row):
            panels.append(
                _panel(len(panels) + 1, name, unit, targets, description, width, place, top + 1)
            )
        top += 9
    return json.dumps(_dashboard(panels), indent=2) + "\n"


def _panel(
    number: int,
    title: str,
    unit: str,
    targets: list[tuple[str, str]],
    description: str,
    width: int,
    place: int,
    top: int,
) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": title,
        "description": description,
        "datasource": {"type": "prometheus", "uid": "$datasource"},
        "gridPos": {"h": 8, "w": width, "x": place * width, "y": top},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": chr(ord("A") + at), "expr": query, "legendFormat": legend}
            for at, (query, legend) in enumerate(targets)
        ],
    }


def _dashboard(panels: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "uid": "triggerer",
        "title": "triggerer",
        "tags": ["triggerer"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Data source",
                    "type": "datasource",
                    "query": "prometheus",
                },
                _variable("stream", "Stream", "triggerer_messages_consumed_total"),
                _variable("dag", "DAG", "triggerer_dag_runs_total"),
            ]
        },
        "panels": panels,
    }


def _variable(label: str, title: str, metric: str) -> dict[str, Any]:
    """Return a variable with the values of a metric's label."""
    return {
        "name": label,
        "label": title,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "$datasource"},
        "query": f"label_values({metric}, {label})",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
