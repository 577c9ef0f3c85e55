"""Tries commands about partition keys while a `standalone` makes runs for quarters, months and days."""

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


HOURS = """
from datetime import datetime, timezone

from triggerer import DAG, Asset, task
from triggerer.partitions import DayWindow, RollupMapper, StartOfDayMapper
from triggerer.timetables import CronPartitionTimetable, PartitionedAssetTimetable

hours = Asset("x-lake://hours", name="hours")
HOUR = "%Y-%m-%dT%H"
by_day = RollupMapper(upstream_mapper=StartOfDayMapper(input_format=HOUR), window=DayWindow())

with DAG(
    "hourly",
    schedule=CronPartitionTimetable("@hourly", timezone="UTC", run_offset=-1, key_format=HOUR),
    start_date=datetime(2026, 3, 10, 1, tzinfo=timezone.utc),
    end_date=datetime(2026, 3, 11, tzinfo=timezone.utc),
    catchup=True,
):

    @task(outlets=hours)
    def load(dag_run, data_interval_start):
        assert dag_run.partition_key == data_interval_start.strftime(HOUR)

    load()

with DAG(
    "daily", schedule=PartitionedAssetTimetable(assets=hours, default_partition_mapper=by_day)
):

    @task
    def sum_up(dag_run, triggering_asset_events):
        keys = [event.partition_key for event in triggering_asset_events[hours]]
        print("day", dag_run.partition_key, "of", min(keys), "to", max(keys))

    sum_up()
"""


def test_the_hours_that_a_cron_asks_for_make_the_run_of_their_day(tmp_path: Path) -> None:
    with serving(tmp_path, HOURS, count=2) as service:
        service.until("SELECT count(*) = 25 FROM dag_run WHERE state = 'success'")
        (day,) = service.json("runs", "list", "--dag", "daily")
        assert (day["partition_key"], len(day["asset_event_ids"])) == ("2026-03-10", 24)
        log = service.run("runs", "logs", "daily", day["run_id"]).stdout
        assert "day 2026-03-10 of 2026-03-10T00 to 2026-03-10T23" in log
        runs = service.json("runs", "list", "--dag", "hourly")
        hours = [f"2026-03-10T{hour:02}" for hour in range(24)]
        assert sorted(run["partition_key"] for run in runs) == hours
        last = max(runs, key=lambda run: run["partition_key"])
        said = service.run("why", "hourly", last["run_id"]).stdout
        assert "its timetable asked for it" in said
        assert "2026-03-10T23" in said

        # An hour that is written again is a further run of its day.
        again = service.json(
            "dags", "backfill", "hourly", "--partition-key", hours[5], "--reprocess", "all"
        )
        assert again["intervals"] == {"started": 1}
        service.until(
            "SELECT count(*) = 2 FROM dag_run WHERE dag_id = 'daily' AND state = 'success'"
        )
        days = service.json("runs", "list", "--dag", "daily")
        assert [run["partition_key"] for run in days] == ["2026-03-10", "2026-03-10"]

        planned = service.run(
            "dags",
            "backfill",
            "hourly",
            "--from",
            "2026-03-11",
            "--to",
            "2026-03-11T01:00",
            "--dry-run",
        ).stdout
        assert "2026-03-11T01" in planned
        tried = service.json("dags", "test", "hourly", "--partition-key", "2026-03-10T07")
        assert (tried["state"], tried["partition_key"]) == ("success", "2026-03-10T07")
        assert [event["partition_key"] for event in tried["emitted"]] == ["2026-03-10T07"]
        dated = service.json("dags", "test", "hourly", "--logical-date", "2026-03-10T07:30")
        assert dated["partition_key"] == "2026-03-10T06"
        wrong = service.run("dags", "trigger", "hourly", "--partition-key", "2026-03-10")
        assert wrong.returncode == 1
        assert "is not of the format" in wrong.stderr
