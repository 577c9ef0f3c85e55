"""The stand-in's answers that are not lists of rows."""

from __future__ import annotations

from datetime import date, timedelta

from tests.page.double.data import BIG, ONE, TASK_STATES, Data, Row

CLEANING_ERROR = "the log of the run 'manual__1' cannot be deleted: Permission denied"


def overview(data: Data) -> Row:
    """Return what `/overview` answers."""
    size = data.size
    is_big = size is BIG
    ailing = [data.watcher(number) for number in range(size.watchers and min(200, size.watchers))]
    ailing = [one for one in ailing if one["state"] != "running"][:20]
    failed = [data.run(number) for number in range(min(200, size.runs))]
    failed = [run for run in failed if run["state"] == "failed"][:20]
    broken = [
        {
            "path": f"/srv/dags/broken_{number}.py",
            "errors": [
                {
                    "file": f"/srv/dags/broken_{number}.py",
                    "line": 12,
                    "reason": "SyntaxError: invalid syntax",
                }
            ],
        }
        for number in range(3 if is_big else 0)
    ]
    watchers = size.watchers
    return {
        "at": data.at(0),
        "broken_files": broken,
        "watchers": ailing,
        "watcher_states": {
            "running": watchers * 17 // 20,
            "failing": watchers // 20,
            "catching_up": watchers // 20,
            "waiting": watchers // 20,
        }
        if is_big
        else ({"failing": 1} if watchers else {}),
        "parked": [
            {
                "asset_name": data.asset_name(number),
                "watcher": "main",
                "count": 1 if size is ONE else 200,
                "first_at": data.at(9000),
                "last_at": data.at(300),
                "error": data.error(number),
            }
            for number in range(min(12, size.parked))
            if number + 1 not in data.gone_parked
        ],
        "failed_runs": failed,
        "failed_run_count": {"value": 1_000 if is_big else len(failed), "is_counted_short": is_big},
        "waiting_runs": [data.run(0)] if is_big else [],
        "missing_instances": ["node-2:977:7aa1"] if is_big else [],
        "cleaning_error": CLEANING_ERROR if is_big else None,
        "cleaning_failed_at": data.at(40_000) if is_big else None,
        "run_states": {"running": 2, "queued": 1} if is_big else {},
        "dags": size.dags,
        "paused_dags": size.dags // 11,
        "assets": size.watchers,
        "streams": size.streams,
        "last_event_at": data.at(2) if size.events else None,
    }


def why_not(data: Data, dag: Row) -> Row:
    """Return what `/dags/{dag_id}/why-not` answers."""
    holds = [
        {
            "kind": "assets",
            "reason": f"no event of {data.asset_name(0)} has come since the last run",
            "until": None,
        }
    ]
    if dag["is_paused"]:
        holds.insert(0, {"kind": "paused", "reason": "it is paused", "until": None})
    if data.size is BIG:
        holds.append(
            {
                "kind": "cap",
                "reason": "16 runs are queued or running, and at most 16 are allowed",
                "until": None,
            }
        )
    ill = data.watcher(0) | {"state": "failing", "error": data.error(1)}
    return {
        "dag_id": dag["dag_id"],
        "runs_due": 0,
        "holds": holds,
        "next_run": None,
        "waiting": [{"asset_name": data.asset_name(1), "asset_uri": "kafka://b/1", "queued": 1}],
        "partitions": [],
        "watchers": [ill],
    }


def why(data: Data, run: Row) -> Row:
    """Return what `/dags/{dag_id}/dagRuns/{run_id}/why` answers."""
    name = data.asset_name(0)
    return {
        "dag_id": run["dag_id"],
        "run_id": run["run_id"],
        "run_type": run["run_type"],
        "expression": {
            "all": [
                {"asset": name, "satisfied": True},
                {
                    "any": [
                        {"asset": "weather", "satisfied": False},
                        {"alias": "late", "satisfied": True},
                    ],
                    "satisfied": True,
                },
            ],
            "satisfied": True,
        },
        "events": [
            data.event(max(1, data.size.events - number))
            for number in range(1 if data.size is ONE else 50)
        ],
        "streams": {f"{name}/main": data.stream_name(0)},
    }


def trace(data: Data, number: int) -> Row:
    """Return what `/assets/events/{id}/trace` answers."""
    runs = [data.run(index) for index in range(1 if data.size is ONE else 6)]
    return {
        "event": data.event(number),
        "stream": data.stream_name(0),
        "source_run": None,
        "runs": [
            {
                "run": run,
                "part": "triggered" if index % 2 == 0 else "included",
                "tasks": [data.task_run(task, run) for task in range(4)],
                "events": [data.emitted(index)],
            }
            for index, run in enumerate(runs)
        ],
        "waiting": [{"dag_id": data.dag_id(1), "is_paused": True, "partition_key": None}],
        "has_more_runs": data.size is BIG,
    }


def grid(data: Data, dag_id: str, *, limit: int) -> Row:
    """Return what `/dags/{dag_id}/grid` answers."""
    runs = [data.run(number, dag_id) for number in range(min(limit, data.size.runs))]
    states: list[str | None] = [None, *TASK_STATES]
    tasks = [data.task_id(index) for index in range(data.size.tasks)]
    cells = [
        0
        if run["state"] == "queued"
        else (
            2
            if run["state"] == "failed" and task == 3
            else 5
            if run["state"] == "failed" and task > 3
            else 1
            if (task + column) % 17
            else 4
        )
        for column, run in enumerate(runs)
        for task in range(len(tasks))
    ]
    return {
        "tasks": tasks,
        "runs": runs,
        "cells": cells,
        "states": states,
        "next_before": "x" if data.size is BIG else None,
    }


def calendar(data: Data, year: int) -> Row:
    """Return what `/dags/{dag_id}/calendar` answers."""
    days = []
    day = date(year, 1, 1)
    today = data.now.date()
    while day.year == year and day <= today and data.size.runs:
        number = day.toordinal()
        if data.size is BIG and number % 9:
            days.append(
                {
                    "day": day.isoformat(),
                    "states": {"success": number * 7 % 40, "failed": 1 if number % 23 == 0 else 0},
                }
            )
        elif data.size is ONE and day == today:
            days.append({"day": day.isoformat(), "states": {"failed": 1}})
        day += timedelta(days=1)
    return {"year": year, "days": days}


def graph(data: Data, around: str | None) -> Row:
    """Return what `/assets/graph` answers: pipelines of 20, or the neighbours of an asset."""
    if not data.size.dags:
        return {"nodes": [], "edges": [], "is_cut_short": False}
    if around is not None or data.size is ONE:
        name = around or data.asset_name(0)
        watcher = {"id": "w", "kind": "watcher", "label": f"{name}/main", "state": "failing"}
        nodes = [
            watcher,
            {"id": "a", "kind": "asset", "label": name},
            {"id": "d", "kind": "dag", "label": data.dag_id(0), "state": "success"},
            {"id": "o", "kind": "asset", "label": "daily_report"},
        ]
        edges = [["w", "a"], ["a", "d"], ["d", "o"]]
        for number in range(0 if data.size is ONE else 12):
            nodes.append(
                {
                    "id": f"x{number}",
                    "kind": "dag",
                    "label": data.dag_id(number + 2),
                    "state": "success",
                }
            )
            edges.append(["a", f"x{number}"])
        return {"nodes": nodes, "edges": edges, "is_cut_short": False}
    nodes, edges = [], []
    for number in range(1_000):
        nodes.append(
            {
                "id": f"a{number}",
                "kind": "asset",
                "label": data.asset_name(number),
                "state": data.watcher(number)["state"],
            }
        )
        nodes.append({"id": f"d{number}", "kind": "dag", "label": data.dag_id(number)})
        edges.append([f"a{number}", f"d{number}"])
        if number % 10:
            edges.append([f"d{number - 1}", f"a{number}"])
    return {"nodes": nodes, "edges": edges, "is_cut_short": False}
