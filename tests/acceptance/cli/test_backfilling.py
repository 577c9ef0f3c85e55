"""A backfill, callbacks and a cleared run, by the commands beside a standalone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.acceptance.instance import wait_until
from tests.acceptance.standalone import Standalone, serving

DAGS = """
from itertools import pairwise
from pathlib import Path
from triggerer import DAG, Asset, task
from triggerer.timetables import CronDataIntervalTimetable

made = Asset("x-made")
NOTES = Path(__file__).parents[1] / "notes"

def note(context):
    with NOTES.open("a") as notes:
        print(context["logical_date"].date(), context["state"], file=notes)

with DAG(
    "daily",
    schedule=CronDataIntervalTimetable("@daily", timezone="UTC"),
    is_paused_upon_creation=True,
    on_success_callback=note,
):
    @task(outlets=made, templated="day")
    def work(day):
        print("worked for", day)

    work("{{ ds }} to {{ data_interval_end | ds }}")
"""
RANGE = ["--from", "2026-01-02", "--to", "2026-01-04"]


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[Standalone]:
    with serving(tmp_path, DAGS, count=1) as service:
        yield service


def _called(standalone: Standalone, count: int) -> list[str]:
    notes = standalone.folder / "notes"
    wait_until(
        lambda: notes.exists() and notes.read_text().count("\n") >= count,
        within_s=60,
        what="the callbacks are called",
    )
    return sorted(notes.read_text().splitlines())


def test_a_range_is_run_in_turn_called_back_and_a_run_of_it_cleared(standalone: Standalone) -> None:
    planned = standalone.json("dags", "backfill", "daily", *RANGE, "--dry-run")
    assert [one["step"] for one in planned] == ["run", "run", "run"]
    started = standalone.json("dags", "backfill", "daily", *RANGE, "--max-active", "1")
    assert (started["state"], started["intervals"]) == ("running", {"pending": 2, "started": 1})
    standalone.until("SELECT count(*) = 3 FROM dag_run WHERE state = 'success'")
    days = ["2026-01-02", "2026-01-03", "2026-01-04"]
    assert _called(standalone, 3) == [f"{day} success" for day in days]
    runs = standalone.json("runs", "list", "--dag", "daily")
    assert [run["logical_date"][:10] for run in runs] == days[::-1]
    # The runs were executed one after the other.
    assert all(new["started_at"] >= old["ended_at"] for new, old in pairwise(runs))
    first = runs[-1]["run_id"]
    log = standalone.run("runs", "logs", "daily", first).stdout
    assert "worked for 2026-01-02 to 2026-01-03" in log

    again = standalone.json("dags", "backfill", "daily", *RANGE)
    assert (again["state"], again["intervals"]) == ("done", {"skipped": 3})
    assert standalone.run("runs", "retry", "daily", first).returncode == 1
    cleared = standalone.json("runs", "clear", "daily", first)
    assert cleared["tasks"] == ["work"]
    standalone.until("SELECT count(*) = 1 FROM dag_run WHERE attempt = 2 AND state = 'success'")
    assert _called(standalone, 4) == sorted([f"{day} success" for day in [days[0], *days]])
    # The three runs have emitted one event each, and the repeat of the cleared day another one.
    assert len(standalone.json("assets", "events", "--asset", "x-made")) == 4


KEYED = """
from triggerer import DAG, Asset, task
from triggerer.partitions import DayWindow, RollupMapper, StartOfDayMapper
from triggerer.timetables import PartitionedAssetTimetable

by_day = RollupMapper(
    upstream_mapper=StartOfDayMapper(input_format="%Y-%m-%dT%H"), window=DayWindow()
)

with DAG(
    "keyed",
    schedule=PartitionedAssetTimetable(assets=Asset("x-hours"), default_partition_mapper=by_day),
    is_paused_upon_creation=True,
):
    @task
    def work(dag_run):
        print("worked for", dag_run.partition_key)

    work()
"""


@pytest.mark.soak
def test_the_days_of_a_range_are_run_as_partition_keys_in_turn(tmp_path: Path) -> None:
    with serving(tmp_path, KEYED, count=1) as service:
        days = ["2026-01-02", "2026-01-03", "2026-01-04"]
        planned = service.json("dags", "backfill", "keyed", *RANGE, "--dry-run")
        assert [(one["partition_key"], one["step"]) for one in planned] == [
            (day, "run") for day in days
        ]
        begun = service.json("dags", "backfill", "keyed", *RANGE, "--max-active", "1")
        assert begun["partition_keys"] == {"started": 1, "pending": 2}
        wait_until(
            lambda: service.json("dags", "backfill", "--list")[0]["state"] == "done",
            within_s=60,
            what="the backfill ends",
        )
        runs = service.json("runs", "list", "--dag", "keyed")
        assert sorted((run["partition_key"], run["state"]) for run in runs) == [
            (day, "success") for day in days
        ]
        again = service.json("dags", "backfill", "keyed", "--partition-key", days[1])
        assert (again["state"], again["partition_keys"]) == ("done", {"skipped": 1})
