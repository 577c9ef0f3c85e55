"""A standalone on SQLite, and the commands beside it: they work, and they wake it."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.acceptance.commands import ENVIRONMENT
from tests.acceptance.instance import wait_until
from tests.acceptance.standalone import Standalone, serving
from tests.services.process import still_alive

DAGS = """
import time
from triggerer import DAG, Asset, task

orders = Asset("x-orders", name="orders")
report = Asset("x-report", name="report")

with DAG("on_orders", schedule=orders, tags=["test"]):
    @task(outlets=[report])
    def collect(triggering_asset_events, log):
        log.info("got %s", [event.extra for event in triggering_asset_events[orders]])
    collect()

with DAG("on_report", schedule=report):
    @task
    def read():
        print("the report is there")
    read()

with DAG("slow", schedule=None, params={"seconds": 60}):
    @task
    def sleep(params):
        time.sleep(params["seconds"])
    sleep()
"""
DOUBTFUL = """\
from triggerer import DAG
from triggerer.timetables import CronDataIntervalTimetable

with DAG("from_nowhere", schedule=CronDataIntervalTimetable("@daily", timezone="UTC"), catchup=True):
    pass
"""
BROKEN = "from triggerer import DAG\n\nraise ValueError('not today')\n"


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[Standalone]:
    with serving(tmp_path, DAGS, count=3) as service:
        yield service


def test_an_emitted_event_goes_through_both_dags(standalone: Standalone) -> None:
    emitted = standalone.json("assets", "emit", "orders", "--extra", '{"amount": 7}')
    (run,) = standalone.ended("on_orders")
    assert run["state"] == "success", run["error"]
    assert run["run_type"] == "asset_triggered"
    assert run["run_id"].startswith("asset_triggered__20")
    assert run["asset_event_ids"] == [emitted["id"]]
    (after,) = standalone.ended("on_report")
    assert after["state"] == "success", after["error"]
    (event,) = standalone.json("assets", "events", "--asset", "report")
    assert (event["source_dag_id"], event["source_run_id"]) == ("on_orders", run["run_id"])

    log = standalone.run("runs", "logs", "on_orders", run["run_id"])
    assert "'amount': 7" in log.stdout
    same = standalone.json("runs", "logs", "on_orders", run["run_id"])
    assert same == {
        "dag_id": "on_orders",
        "run_id": run["run_id"],
        "state": "success",
        "log_path": run["log_path"],
        "log": log.stdout,
    }
    shown = standalone.json("runs", "show", "on_report", after["run_id"])
    assert [task["state"] for task in shown["tasks"]] == ["success"]
    assert (
        "the report is there" in standalone.run("runs", "logs", "on_report", after["run_id"]).stdout
    )


def test_a_running_run_is_followed_until_it_ends_or_somebody_presses_ctrl_c(
    standalone: Standalone,
) -> None:
    standalone.json("dags", "trigger", "slow", "--params", '{"seconds": 60}')
    standalone.until_running()
    follow = standalone.command("runs", "logs", "slow", "--last", "--follow")
    with (
        subprocess.Popen(
            follow, cwd=standalone.folder, env=ENVIRONMENT, stdout=subprocess.PIPE
        ) as one,
        subprocess.Popen(
            follow, cwd=standalone.folder, env=ENVIRONMENT, stdout=subprocess.PIPE
        ) as two,
    ):
        for command in (one, two):
            assert command.stdout is not None
            assert b"attempt 1" in command.stdout.readline()
        one.send_signal(signal.SIGINT)
        assert one.wait(30) == 130
        standalone.json("runs", "cancel", "slow", "--last")
        assert two.wait(60) == 0
        assert two.stdout is not None
        assert two.stdout.read().endswith(b": cancelled\n")


def test_a_paused_dag_keeps_its_events_until_it_is_unpaused(standalone: Standalone) -> None:
    paused = standalone.json("dags", "pause", "on_orders")
    assert paused == {"dag_id": "on_orders", "is_paused": True}
    for _ in range(2):
        standalone.json("assets", "emit", "orders")
    (dag,) = standalone.json("dags", "list", "--dag", "on_orders")
    assert (dag["is_paused"], dag["queued_events"]) == (True, 2)
    assert standalone.json("runs", "list", "--dag", "on_orders") == []
    unpaused = standalone.json("dags", "unpause", "on_orders")
    assert unpaused == {"dag_id": "on_orders", "is_paused": False}
    (run,) = standalone.ended("on_orders")
    assert len(run["asset_event_ids"]) == 2


def test_old_rows_are_cleaned_beside_it(standalone: Standalone) -> None:
    ended = "dag_id = 'on_report' AND state = 'success'"
    for number in (1, 2, 3):
        standalone.json("assets", "emit", "orders")
        standalone.until(f"SELECT count(*) >= {number} FROM dag_run WHERE {ended}")
    standalone.json("dags", "pause", "on_orders")
    waiting = standalone.json("assets", "emit", "orders")
    would = standalone.json("db", "clean", "--before", "PT0S", "--dry-run")
    assert len(standalone.json("runs", "list")) == 6

    cleaned = standalone.json("db", "clean", "--before", "PT0S")

    for answer in (would, cleaned):
        assert (answer["runs"], answer["logs"], answer["kept_runs"]) == (4, 4, 2)
        assert answer["asset_events"] == 4
        # Cleaning keeps the newest run of each of the two DAGs, and the event that this run took.
        assert answer["kept_events"] == {"queued": 1, "in_run": 2}
    assert {run["dag_id"] for run in standalone.json("runs", "list")} == {"on_orders", "on_report"}
    standalone.json("dags", "unpause", "on_orders")
    standalone.until(f"SELECT count(*) = 2 FROM dag_run WHERE {ended}")
    run = standalone.json("runs", "list", "--dag", "on_orders")[0]
    assert run["asset_event_ids"] == [waiting["id"]]


def test_cleaning_asks_for_an_instant_that_has_passed(standalone: Standalone) -> None:
    for wrong, code in (("yesterday", 2), ("2999-01-01", 1)):
        refused = standalone.run("db", "clean", "--before", wrong)
        assert refused.returncode == code, refused.stderr
    for chosen in ((), ("--before", "90d")):
        assert "deleted: 0 runs" in standalone.run("db", "clean", *chosen).stdout


def test_a_running_run_is_cancelled(standalone: Standalone) -> None:
    triggered = standalone.json("dags", "trigger", "slow", "--params", '{"seconds": 3600}')
    assert triggered["state"] == "queued"
    standalone.until_running()
    began = time.monotonic()
    done = standalone.run("runs", "cancel", "slow", triggered["run_id"])
    assert done.returncode == 0, done.stderr
    (run,) = standalone.ended("slow")
    assert run["state"] == "cancelled"
    assert time.monotonic() - began < 30
    # Cancelling again changes nothing, and a run that ended otherwise cannot be cancelled.
    assert standalone.run("runs", "cancel", "slow", triggered["run_id"]).returncode == 0
    standalone.json("dags", "trigger", "on_report", "--run-id", "by_hand")
    standalone.ended("on_report")
    late = standalone.run("runs", "cancel", "on_report", "by_hand")
    assert late.returncode == 1
    assert "ended already: success" in late.stderr


def test_a_broken_file_is_shown_and_breaks_nothing_else(standalone: Standalone) -> None:
    (standalone.folder / "dags" / "broken.py").write_text(BROKEN)
    standalone.until("SELECT count(*) FROM dag_file WHERE errors LIKE '%not today%'")
    shown = standalone.run("dags", "list")
    assert "broken.py:3: " in shown.stderr
    assert "not today" in shown.stderr
    checked = standalone.run("check")
    assert checked.returncode == 1
    assert "broken.py:3: " in checked.stderr
    assert len(standalone.json("dags", "list")) == 3
    (standalone.folder / "dags" / "broken.py").unlink()
    assert standalone.run("check").returncode == 0


def test_warnings_are_shown_with_the_dag(standalone: Standalone) -> None:
    (standalone.folder / "dags" / "doubtful.py").write_text(DOUBTFUL)
    standalone.until("SELECT count(*) FROM dag WHERE dag_id = 'from_nowhere'")
    reason = "with catchup=True its timetable asks for no run"
    shown = standalone.run("dags", "show", "from_nowhere")
    assert f"warning: doubtful.py:4: DAG 'from_nowhere': {reason}" in shown.stderr
    assert reason in standalone.json("dags", "show", "from_nowhere")["file_warnings"][0]["reason"]
    assert "catchup=True needs a start_date" in standalone.run("why-not", "from_nowhere").stdout


def test_a_second_standalone_is_refused_with_the_first_ones_process(
    standalone: Standalone,
) -> None:
    assert standalone.process is not None
    refused = standalone.run("standalone")
    assert refused.returncode == 1
    assert f"pid {standalone.process.pid}" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_when_told_to_and_leaves_no_process(
    standalone: Standalone, signum: signal.Signals
) -> None:
    assert standalone.process is not None
    standalone.json("assets", "emit", "orders")
    standalone.ended("on_orders")
    children = psutil.Process(standalone.process.pid).children(recursive=True)
    assert children
    assert standalone.stop(signum) == 0, standalone.log.read_text()
    assert not still_alive(children, within_s=10)
    # Another process can use the database.
    assert standalone.run("db", "check").returncode == 0


def test_a_second_signal_ends_it_at_once(standalone: Standalone) -> None:
    assert standalone.process is not None
    standalone.json("dags", "trigger", "slow", "--params", '{"seconds": 3600}')
    standalone.until_running()
    standalone.process.send_signal(signal.SIGINT)
    wait_until(
        lambda: '"stopping"' in standalone.log.read_text(),
        within_s=60,
        what="the service stops",
        every_s=0.05,
    )
    standalone.process.send_signal(signal.SIGINT)
    assert standalone.process.wait(10) == 128 + signal.SIGINT


def test_a_run_that_was_cut_short_is_executed_again_at_the_next_start(
    standalone: Standalone,
) -> None:
    assert standalone.process is not None
    standalone.json("dags", "trigger", "slow", "--conf", '{"seconds": 3}')
    standalone.until_running()
    standalone.process.kill()
    standalone.process.wait()
    standalone.start()
    (run,) = standalone.ended("slow")
    assert (run["state"], run["attempt"]) == ("success", 2)
