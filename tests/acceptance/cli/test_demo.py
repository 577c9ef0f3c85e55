"""`triggerer demo` as a user runs it: from nothing to an answer, and Ctrl-C in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.services.process import still_alive

ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("TRIGGERER")}
# Hide the system's Java, because the demo must bring its own.
ENVIRONMENT.pop("JAVA_HOME", None)


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the demo in the test's folder. The end of the test kills it."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        demo = subprocess.Popen(
            [sys.executable, "-m", "triggerer", "demo", *arguments],
            cwd=tmp_path,
            env=ENVIRONMENT,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        started.append(demo)
        return demo

    yield start
    for demo in started:
        if demo.poll() is None:
            os.killpg(demo.pid, signal.SIGKILL)
        demo.communicate()


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_demo_answers_its_question_and_its_books_agree(tmp_path: Path, start: Start) -> None:
    began = time.monotonic()
    demo = start()
    out, _ = demo.communicate(timeout=380)
    seconds = time.monotonic() - began
    assert demo.returncode == 0, out
    assert "51,955 flights and 4,236 hourly weather" in out
    assert "All 15 counts agree." in out
    assert "WRONG" not in out
    (home,) = (tmp_path / ".triggerer-demo").iterdir()
    assert str(home / "results") in out
    answer = json.loads((home / "results" / "answer.json").read_text())
    assert sum(row["flights"] for row in answer) == 51_874
    # The demo should take two minutes on an idle machine. A loaded machine takes longer, so only print the time.
    print(f"the demo took {seconds:.0f} s at a load of {os.getloadavg()[0]:.1f}")

    # The ordinary commands can read the demo's database.
    listed = subprocess.run(
        [
            *(sys.executable, "-m", "triggerer", "runs", "list", "--json", "--limit", "0"),
            *("--config", str(home / "triggerer.toml")),
        ],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    runs = json.loads(listed.stdout)
    assert {run["state"] for run in runs} == {"success"}
    joined = [run for run in runs if run["dag_id"] == "join_flights_with_weather"]
    events = [event for run in joined for event in run["asset_event_ids"]]
    assert len(events) == len(set(events)) == 56_191


@pytest.mark.parametrize("wait_for", ["broker:", "publishing", "backlog: "])
def test_ctrl_c_stops_the_demo_cleanly(start: Start, wait_for: str) -> None:
    demo = start()
    assert demo.stdout is not None
    for line in demo.stdout:
        if wait_for in line:
            break
    else:
        pytest.fail(f"the demo ended before it said {wait_for!r}")
    children = psutil.Process(demo.pid).children(recursive=True)
    os.killpg(demo.pid, signal.SIGINT)  # the whole process group, as a terminal does
    out, _ = demo.communicate(timeout=60)
    assert demo.returncode == 130, out
    assert "Interrupted" in out
    assert "Traceback" not in out
    assert not still_alive(children, within_s=10)


def test_a_home_that_is_not_empty_is_refused(tmp_path: Path, start: Start) -> None:
    (tmp_path / "mine").touch()
    out, _ = (demo := start("--home", str(tmp_path))).communicate(timeout=60)
    assert demo.returncode == 1
    assert "not an empty folder" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]
