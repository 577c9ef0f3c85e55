"""The alert rules and the dashboard name only metrics that exist, and only labels that these metrics have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from triggerer.observability.metrics.table import METRICS

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
HOWTO = ROOT / "docs" / "howto" / "monitoring.md"
_NAME = re.compile(r"\btriggerer_\w+")
_SELECTOR = re.compile(r"\b(triggerer_\w+)\{([^}]*)\}")
_GROUPING = re.compile(r"\bby \(([^)]*)\)")
_ADDED = {"instance", "job", "le"}
"""Labels that Prometheus and histograms add."""


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    return list(group["rules"])


def panels() -> list[dict[str, Any]]:
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def metric_of(name: str) -> str:
    for suffix in ("_bucket", "_sum", "_count"):
        base = name.removesuffix(suffix)
        if base != name and base in METRICS:
            assert METRICS[base].kind == "histogram"
            return base
    return name


def check(query: str) -> None:
    names = [metric_of(name) for name in _NAME.findall(query)]
    assert names, query
    unknown = set(names) - METRICS.keys()
    assert not unknown, f"{unknown} in {query}"
    known = {label for name in names for label in METRICS[name].labels} | _ADDED
    for name, selector in _SELECTOR.findall(query):
        labels = set(re.findall(r"(\w+)\s*(?:=|!=|=~|!~)", selector))
        assert labels <= set(METRICS[metric_of(name)].labels), query
    for labels in _GROUPING.findall(query):
        assert {one.strip() for one in labels.split(",")} <= known, query
    for opened, closed in ("()", "[]", "{}"):
        assert query.count(opened) == query.count(closed), query
    # `rate` and `increase` are for counters. `delta`, `max` and `min` are for gauges.
    for found in re.finditer(r"(\w+)\((triggerer_\w+)", query):
        function, metric = found[1], METRICS[metric_of(found[2])]
        if function in ("rate", "increase"):
            assert metric.kind != "gauge", query
        if function in ("delta", "max", "min"):
            assert metric.kind == "gauge", query


def test_alert_rules_name_metrics_and_say_what_to_do() -> None:
    page = HOWTO.read_text()
    for rule in rules():
        check(rule["expr"])
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "action"}
        assert f"`{rule['alert']}`" in page


def test_the_queries_of_the_dashboards_panels_name_metrics() -> None:
    for panel in panels():
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["description"]
        for target in panel["targets"]:
            check(target["expr"])
            for window in re.findall(r"\[([^\]]*)\]", target["expr"]):
                assert window == "$__rate_interval"


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells
        assert place["x"] + place["w"] <= 24
        taken |= cells
