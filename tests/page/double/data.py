"""Made-up answers of the API. Rows are computed from their numbers, so that a million events take no memory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

Row = dict[str, Any]

RUN_STATES: Final = ("success", "success", "success", "failed", "success", "cancelled", "success")
WATCHER_STATES: Final = ("running",) * 17 + ("failing", "catching_up", "waiting")
TASK_STATES: Final = ("success", "failed", "running", "skipped", "upstream_failed", "queued")


@dataclass(frozen=True)
class Size:
    """The number of objects of each kind."""

    name: str
    dags: int
    watchers: int
    events: int
    runs: int
    streams: int
    parked: int
    tasks: int = 4
    lanes: int = 3


NOTHING: Final = Size("nothing", 0, 0, 0, 0, 0, 0)
ONE: Final = Size("one", 1, 1, 1, 1, 1, 1)
BIG: Final = Size("big", 2_000, 10_000, 1_000_000, 100_000, 40, 2_400, tasks=120, lanes=256)
SIZES: Final = {size.name: size for size in (NOTHING, ONE, BIG)}


class Data:
    """The API's rows, as many as `size` says. Ids and names that users choose end with `mark`, such as a run's id."""

    def __init__(self, size: Size, *, mark: str = "") -> None:
        self.size = size
        self.mark = mark
        self.now = datetime.now(UTC)
        self.extra_events = 0
        self.paused: set[str] = set()
        self.gone_parked: set[int] = set()

    def at(self, seconds_ago: float) -> str:
        return (self.now - timedelta(seconds=seconds_ago)).isoformat().replace("+00:00", "Z")

    # Names

    def dag_id(self, number: int) -> str:
        kind = ("orders", "clicks", "billing", "reports")[number % 4]
        return f"{kind}_{number:04}{self.mark}"

    def asset_name(self, number: int) -> str:
        return f"{('orders', 'clicks', 'invoices', 'stock')[number % 4]}_{number:04}{self.mark}"

    def run_id(self, number: int) -> str:
        return f"asset_triggered__{self.at(number * 30)}{self.mark}"

    def error(self, number: int) -> str:
        lines = (
            f"ValueError: amount must be positive, not -{number}",
            "KeyError: 'customer'",
            "pyspark.errors.exceptions.captured.AnalysisException: [TABLE_OR_VIEW_NOT_FOUND] orders",
        )
        return lines[number % 3] + self.mark

    def traceback(self, number: int) -> str:
        place = '  File "/srv/dags/orders.py", line 14, in filter'
        return f"Traceback (most recent call last):\n{place}\n{self.error(number)}"

    def stream_id(self, number: int) -> str:
        return f"{number:02}c0ffee{number * 7919:08x}"

    # Rows

    def asset(self, number: int) -> Row:
        return {
            "id": number + 1,
            "name": self.asset_name(number),
            "uri": f"kafka://broker-{number % 5}/{self.asset_name(number)}",
            "group": "asset",
            "extra": {},
            "declared_in": f"/srv/dags/{self.dag_id(number % max(1, self.size.dags))}.py",
            "last_event_timestamp": self.at(2 + number % 900),
            "watchers": {self.watcher(number)["state"]: 1},
        }

    def event(self, number: int) -> Row:
        key = None if number % 5 else f"2026-11-{1 + number % 28:02}"
        return {
            "id": number,
            "asset_name": self.asset_name(number % 40 if self.size is BIG else 0),
            "asset_uri": "kafka://broker-0/orders",
            "extra": {
                "value": {"amount": number * 3, "customer": f"c{number}{self.mark}"},
                "key": None,
                "topic": "orders",
                "partition": number % 12,
                "offset": number,
                "timestamp": 1_764_320_000_000 + number,
                "headers": {"traceparent": "00-4bf92f3577b34da6-00f067aa0ba902b7-01" + self.mark},
            },
            "timestamp": self.at((self.size.events - number) * 0.05 + 2),
            "source_watcher": "main",
            "source_dag_id": None,
            "source_run_id": None,
            "source_task_id": None,
            "idempotency_key": f"3f9a/{number % 12}/{number}",
            "partition_key": key,
        }

    def emitted(self, number: int) -> Row:
        return self.event(number) | {
            "id": 5_000_000 + number,
            "asset_name": "daily_report",
            "extra": {"rows": 12 * number, "note": "<b>bold</b>" + self.mark},
            "source_watcher": None,
            "source_dag_id": self.dag_id(number),
            "source_run_id": self.run_id(number),
            "source_task_id": "collect",
            "idempotency_key": None,
        }

    def dag(self, number: int) -> Row:
        cron = {
            "timetable": {
                "type": "CronDataIntervalTimetable",
                "arguments": {"cron": "0 3 * * *", "timezone": "UTC"},
            }
        }
        on_asset = {"asset": {"name": self.asset_name(number), "uri": f"kafka://b/{number}"}}
        dag_id = self.dag_id(number)
        return {
            "dag_id": dag_id,
            "path": f"/srv/dags/{dag_id}.py",
            "description": "Collects orders, and writes them as one table"
            if number % 3 == 0
            else None,
            "tags": ["sales", "hourly"][: number % 3],
            "schedule": cron if number % 4 == 3 else on_asset,
            "max_active_runs": 16,
            "events_per_run": None,
            "params": {"limit": 100},
            "tasks": [
                {
                    "task_id": self.task_id(index),
                    "outlets": [],
                    "inlets": [],
                    "upstream": [self.task_id(index - 1)] if index else [],
                }
                for index in range(self.size.tasks)
            ],
            "is_paused": dag_id in self.paused or number % 11 == 5,
            "is_stale": number % 97 == 50,
            "file_missing_since": None,
            "queued_events": (number * 13) % 40,
            "is_counted_short": False,
            "last_run_id": self.run_id(number),
            "last_run_state": RUN_STATES[(number + 3) % 7] if number else "failed",
            "next_run_after": self.at(-3600 - number) if number % 4 == 3 else None,
            "file_warnings": [],
            "file_error": "SyntaxError: invalid syntax (line 12)" if number % 301 == 300 else None,
        }

    def task_id(self, index: int) -> str:
        return ("extract", "clean", "join", "collect")[index % 4] + (
            f"_{index}" if index > 3 else ""
        )

    def run(self, number: int, dag: str | None = None) -> Row:
        state = "failed" if self.size is ONE else RUN_STATES[number % 7]
        if self.size is BIG and number < 3:
            state = ("queued", "running", "running")[number]
        started = None if state == "queued" else self.at(number * 30 + 20)
        return {
            "dag_id": dag or self.dag_id((number * 3) % max(1, self.size.dags)),
            "run_id": self.run_id(number),
            "run_type": "asset_triggered",
            "state": state,
            "logical_date": None,
            "data_interval_start": None,
            "data_interval_end": None,
            "run_after": self.at(number * 30 + 21),
            "queued_at": self.at(number * 30 + 21),
            "started_at": started,
            "ended_at": None
            if state in ("queued", "running")
            else self.at(number * 30 + 20 - 5 - number % 14),
            "error": f"task collect: {self.error(number)}" if state == "failed" else None,
            "params": {"limit": 100},
            "exit_code": 1 if state == "failed" else None,
            "attempt": 1,
            "executor": "node-1:4242:ab12",
            "log_path": "/var/lib/triggerer/logs/x.log",
            "partition_key": None,
            "waiting_for": "a free worker" if state == "queued" else None,
            "waiting_since": self.at(400) if state == "queued" else None,
            "asset_event_ids": [max(1, self.size.events - number)],
        }

    def attempt(self, run: Row) -> Row:
        launch = {
            "tag": "triggerer-i-1-1-1",
            "launcher": "yarn",
            "task_id": "collect",
            "place": "yarn",
            "external_id": "application_17_0001" + self.mark,
            "link": "javascript:alert(1)" if self.mark else "http://yarn.example/app/1",
            "state": "ended",
            "reason": None,
        }
        times = {name: run[name] for name in ("state", "executor", "started_at", "ended_at")}
        return {
            "number": 1,
            "epoch": 1,
            "tag": "triggerer-i-1-1-1",
            "reason": run["error"],
            "claimed_at": run["queued_at"],
            "launches": [launch],
        } | times

    def task_run(self, index: int, run: Row) -> Row:
        began = 20 - index * 3
        is_last = index == 3
        state = run["state"] if is_last and run["state"] != "queued" else "success"
        return {
            "task_id": self.task_id(index),
            "state": state,
            "try_number": 2 if index == 2 else 1,
            "started_at": self.at(began),
            "ended_at": None if state == "running" else self.at(began - 3),
            "error": self.error(index) if state == "failed" else None,
            "progress": self.progress(index, began, state) if index in (1, 3) else None,
        }

    def progress(self, index: int, began: int, state: str) -> Row:
        """Return a task's progress on Spark, with the newest two stages. The last one is over if the task succeeded."""
        is_over = state == "success"
        counts = {"tasks_failed": 0, "rows_written": 0}
        first = {"tasks": 200, "tasks_done": 200, "rows_read": 41_000, "bytes_read": 5_300_000}
        last = {"tasks": 8, "tasks_done": 8 if is_over else 3, "rows_read": 0, "bytes_read": 0}
        return {
            "total": counts
            | {name: first[name] + last[name] for name in first}
            | {"stages": 23, "stages_done": 23 if is_over else 22},
            "newest_stages": [
                counts
                | first
                | {
                    "stage_id": 10 + index,
                    "name": "save at /srv/dags/orders.py:41" + self.mark,
                    "started_at": self.at(began - 0.3),
                    "ended_at": self.at(began - 2),
                },
                counts
                | last
                | {
                    "stage_id": 11 + index,
                    "name": "",
                    "started_at": self.at(began - 2),
                    "ended_at": self.at(began - 3) if is_over else None,
                },
            ],
        }

    def watcher(self, number: int) -> Row:
        state = "failing" if self.size is ONE else WATCHER_STATES[number % 20]
        stream = number % max(1, self.size.streams)
        text = self.traceback(number)
        is_failing = state == "failing"
        return {
            "asset_name": self.asset_name(number),
            "name": "main",
            "trigger": "watchers.kafka.KafkaEventTrigger",
            "stream": self.stream_name(stream),
            "stream_id": self.stream_id(stream),
            "state": state,
            "error": self.error(number) if is_failing else None,
            "owner": None if state == "waiting" else "node-1:4100:9f3c",
            "kwargs": {"topics": ["orders"], "match": {"amount": {"gt": 1000}}},
            "path": "/srv/dags/orders.py",
            "updated_at": self.at(95 + number % 1000),
            "behind": 1200 + number if state == "catching_up" else 0,
            "behind_since": self.at(600) if state == "catching_up" else None,
            "traceback": text if is_failing else None,
            "positions": [],
            "set_aside": 3 if number % 50 == 0 else 0,
            "guarantee": None,
            "reason": "no instance hosts it" if state == "waiting" else None,
        }

    def stream_name(self, number: int) -> str:
        return f"kafka orders,clicks group triggerer-{number:02}"

    def stream(self, number: int, *, lanes: bool = False) -> Row:
        lag = 0 if number % 4 else 18_000 + number * 41
        share = max(1, self.size.watchers // max(1, self.size.streams))
        return {
            "id": self.stream_id(number),
            "stream": self.stream_name(number),
            "owner": None if number == 7 else "node-1:4100:9f3c",
            "epoch": 12,
            "lease_ends_at": self.at(-11),
            "watchers": {
                "running": share - share // 10,
                "failing": share // 20,
                "catching_up": share // 20,
            }
            if self.size is BIG
            else {"failing": 1},
            "reported_at": self.at(3),
            "lag": lag if self.size is BIG else 0,
            "lag_seconds": 95.0 + number if lag and self.size is BIG else 0.0,
            "outstanding": 400 + number * 60,
            "consumed": 90_000,
            "advanced": 89_600,
            "behind": 3,
            "paused": "the store is slow" if number == 4 else None,
            "lane_count": self.size.lanes,
            "lanes": [self.lane(index) for index in range(self.size.lanes)] if lanes else [],
            "history": self.history(number, lag if self.size is BIG else 0)
            if number != 7
            else None,
        }

    def history(self, number: int, lag: int) -> Row:
        minutes = 60 if self.size is BIG else 7
        isolated = 20 + number % 30
        return {
            "since": self.at(60 * (minutes - 1)),
            "lag": [
                None if minute == isolated else max(0, lag - 40 * (minutes - 1 - minute) * number)
                for minute in range(minutes)
            ],
            "consumed": [1_300 + (minute * 7919 * (number + 1)) % 900 for minute in range(minutes)],
        }

    def lane(self, index: int) -> Row:
        return {
            "lane": f'["orders", {index}]',
            "lag": 0 if index % 3 else index * 13,
            "lag_seconds": None if index % 3 else float(index),
            "outstanding": index % 7,
            "paused": "a watcher is full" if index % 90 == 89 else None,
        }

    def parked(self, number: int) -> Row:
        return {
            "id": number + 1,
            "asset_name": self.asset_name(number % 12),
            "watcher": "main",
            "lane": f'["orders", {number % 12}]',
            "idempotency_key": f"3f9a/{number % 12}/{number}",
            "state": "set_aside",
            "failures": 11,
            "error": self.error(number),
            "parked_at": self.at(300 + number * 4),
        }

    def parked_message(self, number: int) -> Row:
        text = (
            f'Traceback (most recent call last):\n  File "orders.py", line 14\n{self.error(number)}'
        )
        body = json.dumps({"amount": -number, "customer": f"c{number}{self.mark}"})
        return self.parked(number) | {"traceback": text, "size_bytes": len(body), "message": body}

    def log(self) -> bytes:
        lines = 40 if self.size is ONE else 200_000
        text = "".join(
            f"2026-11-28 09:00:{index % 60:02}.{index % 1000:03} "
            + ("ERROR  " if index % 29 == 28 else "WARNING" if index % 13 == 12 else "INFO   ")
            + f" collect: read batch {index} of orders{self.mark}\n"
            for index in range(lines)
        )
        return text.encode()
