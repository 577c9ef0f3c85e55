"""Prometheus' own parser reads our rules, our queries and our metrics.

Without promtool, most of these tests are skipped.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deploy.test_monitoring import MONITORING, panels, rules
from triggerer.observability.metrics import table
from triggerer.observability.metrics.exposition import Gathering, Sample
from triggerer.observability.metrics.table import METRICS

UNIT_TESTS = Path(__file__).with_name("alerts.yaml")


def promtool(*words: object, sent: bytes | None = None) -> str:
    """Run promtool; return its output."""
    if (found := shutil.which("promtool")) is None:
        pytest.skip("no promtool on PATH (Debian: it is in the package prometheus)")
    done = subprocess.run(
        [found, *map(str, words)], input=sent, capture_output=True, timeout=60, check=False
    )
    output = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, output
    return output


def test_prometheus_reads_the_alert_rules() -> None:
    said = promtool("check", "rules", "--lint-fatal", MONITORING / "alerts.yaml")
    assert f"SUCCESS: {len(rules())} rules found" in said


def test_each_alert_fires_for_what_it_names_and_none_while_all_is_well() -> None:
    promtool("test", "rules", UNIT_TESTS)


def test_each_alert_has_a_unit_test() -> None:
    text = UNIT_TESTS.read_text()
    assert [rule["alert"] for rule in rules() if f'alertname="{rule["alert"]}"' not in text] == []


def test_prometheus_reads_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    queries = [target["expr"] for panel in panels() for target in panel["targets"]]
    recorded = [
        {"record": f"query:{number}", "expr": _with_values(query)}
        for number, query in enumerate(queries)
    ]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}))
    assert f"SUCCESS: {len(queries)} rules found" in promtool("check", "rules", file)


def _with_values(query: str) -> str:
    """Replace Grafana's variables by values."""
    return re.sub(r"\$(stream|dag)\b", ".*", query.replace("$__rate_interval", "5m"))


def test_prometheus_finds_nothing_wrong_with_the_names_and_types_of_our_metrics() -> None:
    gathering = Gathering()
    gathering.add(_samples)
    text = gathering.text()
    assert all(f"# HELP {name} ".encode() in text for name in METRICS)
    said = promtool("check", "metrics", sent=text)
    assert [line for line in said.splitlines() if "triggerer_" in line] == []


def _samples() -> list[Sample]:
    """Return a sample of each metric whose value is read at a scrape."""
    own = {one.metric.name for one in (*table.COUNTERS, *table.HISTOGRAMS)}
    return [
        Sample(metric, 1, ("x",) * len(metric.labels))
        for name, metric in METRICS.items()
        if name not in own
    ]
