"""Months that become a quarter, and a quarter that becomes months, by the commands beside a standalone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.standalone import Standalone, serving

DAGS = """
from triggerer import DAG, Asset, task
from triggerer.partitions import FanOutMapper, QuarterWindow, RollupMapper, StartOfQuarterMapper
from triggerer.timetables import PartitionedAssetTimetable

months, quarters = Asset("x-lake://months", name="months"), Asset("x-lake://quarters", name="quarters")
quarter_of = StartOfQuarterMapper(input_format="%Y-%m")
by_quarter = RollupMapper(upstream_mapper=quarter_of, window=QuarterWindow())
of_quarter = FanOutMapper(
    upstream_mapper=StartOfQuarterMapper(input_format="%Y-Q{quarter}"), window=QuarterWindow()
)

with DAG(
    "rolled_up", schedule=PartitionedAssetTimetable(assets=months, default_partition_mapper=by_quarter)
):

    @task(outlets=quarters, templated="key")
    def work(key, dag_run, triggering_asset_events, outlet_events):
        assert key == dag_run.partition_key
        parts = [event.partition_key for event in triggering_asset_events[months]]
        outlet_events[quarters].extra = {"parts": parts}

    work(key="{{ dag_run.partition_key }}")

with DAG(
    "fanned_out", schedule=PartitionedAssetTimetable(assets=quarters, default_partition_mapper=of_quarter)
):

    @task
    def note(dag_run, triggering_asset_events):
        (event,) = triggering_asset_events[quarters]
        print("month", dag_run.partition_key, "of", event.partition_key, event.extra["parts"])

    note()
"""


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[Standalone]:
    with serving(tmp_path, DAGS, count=2) as service:
        yield service


def test_months_make_a_quarter_and_a_quarter_makes_months(standalone: Standalone) -> None:
    for month in ("2026-01", "2026-03"):
        standalone.json("assets", "emit", "months", "--partition-key", month)
    standalone.until("SELECT count(*) = 2 FROM dag_partition_event")
    said = standalone.run("why-not", "rolled_up").stdout
    assert "2026-Q1 waits for months 2026-02" in said
    queued = standalone.json("assets", "queued", "list", "--dag", "rolled_up")
    assert [one["partition_key"] for one in queued] == ["2026-Q1", "2026-Q1"]

    standalone.json("assets", "emit", "months", "--partition-key", "2026-02")
    standalone.until("SELECT count(*) = 4 FROM dag_run WHERE state = 'success'")
    (quarter,) = standalone.json("runs", "list", "--dag", "rolled_up")
    assert quarter["partition_key"] == "2026-Q1"
    assert len(quarter["asset_event_ids"]) == 3
    runs = standalone.json("runs", "list", "--dag", "fanned_out")
    assert sorted(one["partition_key"] for one in runs) == ["2026-01", "2026-02", "2026-03"]
    log = standalone.run("runs", "logs", "fanned_out", runs[0]["run_id"]).stdout
    parts = ["2026-01", "2026-03", "2026-02"]
    assert f"month {runs[0]['partition_key']} of 2026-Q1 {parts}" in log
