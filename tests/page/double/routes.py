"""The routes of the stand-in, with their answers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.page.double import answers
from tests.page.double.data import NOTHING, Data, Row


def page_of(
    make: Callable[[int], Row],
    total: int,
    query: dict[str, str],
    *,
    newest_first: bool = False,
    keep: Callable[[Row], bool] | None = None,
) -> Row:
    """Return a page out of `total` rows. The cursor is the number of rows before the page."""
    limit = min(1_000, int(query.get("limit", 100)))
    number = int(query.get("cursor") or 0)
    items: list[Row] = []
    while number < total and len(items) < limit:
        row = make(total - number if newest_first else number)
        number += 1
        if keep is None or keep(row):
            items.append(row)
    return {"items": items, "next_cursor": str(number) if number < total else None}


def change(data: Data, parts: list[str], body: Row) -> Row | None:
    """Carry out a change in the data, and return the answer."""
    if parts[0] == "parked":
        data.gone_parked.update(body.get("ids", []))
    if parts[0] == "dags" and len(parts) == 2:
        (data.paused.add if body.get("is_paused") else data.paused.discard)(parts[1])
    if parts == ["tokens"]:
        return {
            "id": "t9",
            "name": body.get("name"),
            "role": body["role"],
            "token": "trg_t9_secret",
        }
    return {"run_id": data.run_id(0)} if parts[-1] == "dagRuns" else {}


def read(data: Data, parts: list[str], query: dict[str, str]) -> Any:
    """Return the answer to a GET of a path, or None if there is nothing at the path."""
    size = data.size
    q = query.get("q", "")
    match parts:
        case ["overview"]:
            return answers.overview(data)
        case ["dags"]:
            return page_of(data.dag, size.dags, query, keep=lambda row: row["dag_id"].startswith(q))
        case ["dags", dag_id, *rest]:
            return _dag(data, dag_id, rest, query)
        case ["runs"]:
            state = query.get("state")
            return page_of(
                data.run, size.runs, query, keep=lambda row: state in (None, row["state"])
            )
        case ["assets"]:
            return page_of(
                data.asset,
                size.watchers,
                query,
                keep=lambda row: row["name"].startswith(q) or row["uri"].startswith(q),
            )
        case ["assets", "graph"]:
            return answers.graph(data, query.get("around"))
        case ["assets", "events"]:
            return page_of(data.event, size.events + data.extra_events, query, newest_first=True)
        case ["assets", "events", "find"]:
            return {"items": [], "next_cursor": None}
        case ["assets", "events", number, "trace"]:
            return (
                answers.trace(data, int(number))
                if number.isdecimal() and 0 < int(number) <= size.events
                else None
            )
        case ["assets", name]:
            return _asset(data, name)
        case ["watchers"]:
            return _watchers(data, query)
        case ["watchers", asset, _]:
            return next(iter(_watchers(data, {"asset": asset})["items"]), None)
        case ["streams"]:
            return page_of(data.stream, size.streams, query)
        case ["streams", digest]:
            number = int(digest[:2]) if digest[:2].isdecimal() else size.streams
            return data.stream(number, lanes=True) if number < size.streams else None
        case ["parked"]:
            return page_of(
                data.parked,
                size.parked,
                query,
                keep=lambda row: (
                    row["id"] not in data.gone_parked
                    and query.get("asset") in (None, row["asset_name"])
                ),
            )
        case ["parked", number]:
            return (
                data.parked_message(int(number) - 1)
                if number.isdecimal() and int(number) <= size.parked
                else None
            )
    return _service(data, parts, query)


def _dag(data: Data, dag_id: str, rest: list[str], query: dict[str, str]) -> Any:
    found = re.search(r"_(\d{4})", dag_id)
    if not found or int(found[1]) >= data.size.dags:
        return None
    dag = data.dag(int(found[1]))
    run = data.run(1 if data.size.name == "big" else 0, dag_id)
    match rest:
        case []:
            return dag
        case ["why-not"]:
            return answers.why_not(data, dag)
        case ["grid"]:
            return answers.grid(data, dag_id, limit=int(query.get("limit", 50)))
        case ["calendar"]:
            return answers.calendar(data, int(query.get("year", data.now.year)))
        case ["dagRuns"]:
            return page_of(lambda number: data.run(number, dag_id), min(data.size.runs, 300), query)
        case ["dagRuns", run_id]:
            return run | {"run_id": run_id}
        case ["dagRuns", _, "why"]:
            return answers.why(data, run)
        case ["dagRuns", _, "attempts"]:
            return {"items": [data.attempt(run)], "next_cursor": None}
        case ["dagRuns", _, "events"]:
            return {"items": [data.emitted(0)], "next_cursor": None}
        case ["dagRuns", _, "tasks"]:
            return {"items": [data.task_run(index, run) for index in range(4)], "next_cursor": None}
        case ["assets", "queuedEvent"]:
            return page_of(
                lambda number: {
                    "dag_id": dag_id,
                    "asset_name": data.asset_name(number),
                    "asset_uri": "",
                    "asset_event_id": number + 1,
                    "queued_at": data.at(60),
                    "partition_key": None,
                },
                min(30, data.size.events),
                query,
            )
    return None


def _asset(data: Data, name: str) -> Row | None:
    found = re.search(r"_(\d{4})", name)
    return data.asset(int(found[1])) if found and int(found[1]) < data.size.watchers else None


def _watchers(data: Data, query: dict[str, str]) -> Row:
    if asset := query.get("asset"):
        found = re.search(r"_(\d{4})", asset)
        return {"items": [data.watcher(int(found[1]))] if found else [], "next_cursor": None}
    state, stream = query.get("state"), query.get("stream")
    return page_of(
        data.watcher,
        data.size.watchers,
        query,
        keep=lambda row: state in (None, row["state"]) and stream in (None, row["stream_id"]),
    )


def _service(data: Data, parts: list[str], query: dict[str, str]) -> Any:
    items: list[Row]
    match parts:
        case ["backfills"]:
            items = [
                {
                    "id": 7,
                    "dag_id": query.get("dag"),
                    "state": "running",
                    "from_date": "2026-01-01T00:00:00Z",
                    "to_date": "2026-02-01T00:00:00Z",
                    "reprocess": "none",
                    "max_active": 4,
                    "params": None,
                    "created_at": data.at(4000),
                    "cancelled_at": None,
                    "intervals": {"pending": 12, "started": 19},
                    "partition_keys": {},
                    "runs": {"success": 15, "running": 4},
                }
            ]
        case ["instances"]:
            items = [
                {
                    "id": f"node-1:41{number}0:9f3c",
                    "kind": kind,
                    "host": "node-1",
                    "pid": 4100 + number,
                    "release": "0.1.0",
                    "state": "silent" if number == 9 else "running",
                    "started_at": data.at(86_000),
                    "heartbeat_at": data.at(2 if number != 9 else 130),
                    "lease_ends_at": data.at(-12),
                }
                for number, kind in enumerate(
                    [
                        "triggerer",
                        "scheduler",
                        "dag-processor",
                        "executor",
                        *["triggerer"] * (6 if data.size.name == "big" else 0),
                    ]
                )
            ]
        case ["config"]:
            items = [
                {
                    "section": section,
                    "key": key,
                    "value": value,
                    "source": source,
                    "unit": "seconds" if key in ("lease_duration", "commit_timeout") else None,
                    "process": "node-1:4100",
                    "others": [
                        {
                            "process": "node-2:977",
                            "parts": ["executor"],
                            "value": 8,
                            "source": "/etc/other.toml:3",
                        }
                    ]
                    if key == "workers"
                    else [],
                }
                for section, key, value, source in [
                    ("core", "dags_folder", "/srv/dags", "/etc/triggerer.toml:2"),
                    ("core", "home", "/var/lib/triggerer", "default"),
                    (
                        "database",
                        "url",
                        "postgresql://triggerer:***@db/triggerer",
                        "TRIGGERER__DATABASE__URL",
                    ),
                    ("database", "commit_timeout", 90, "/etc/triggerer.toml:4"),
                    ("triggerer", "lease_duration", 15, "default"),
                    ("triggerer", "max_deliveries", 10, "default"),
                    ("executor", "workers", 4, "/etc/triggerer.toml:9"),
                    (
                        "connections.kafka",
                        "bootstrap_servers",
                        "broker-0:9092",
                        "/etc/triggerer.toml:14",
                    ),
                    ("connections.kafka", "sasl_password", "***", "/etc/triggerer.toml:15"),
                ]
            ]
        case ["tokens"]:
            items = [
                {
                    "id": f"t{number}",
                    "name": f"name {number}{data.mark}",
                    "role": ["admin", "operator", "viewer"][number % 3],
                    "created_at": data.at(90_000),
                    "expires_at": None,
                    "last_used_at": data.at(200) if number else None,
                    "revoked_at": data.at(100) if number == 3 else None,
                }
                for number in range(5)
            ]
        case ["audit"]:
            items = [
                {
                    "id": number,
                    "at": data.at(number * 900),
                    "actor": "ada",
                    "role": "admin",
                    "via": "session:s1",
                    "action": "dag.pause",
                    "subject": data.dag_id(number),
                    "before": {"is_paused": False},
                    "after": {"is_paused": True},
                    "request_id": "r",
                }
                for number in range(0 if data.size is NOTHING else 40)
            ]
        case ["whoami"]:
            return {"name": "ada", "role": "admin", "via": "session:s1", "sees_payloads": True}
        case _:
            return None
    return {
        "items": items if data.size is not NOTHING or parts != ["backfills"] else [],
        "next_cursor": None,
    }
