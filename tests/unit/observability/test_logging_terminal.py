"""Log lines as a person at a terminal reads them."""

import json
import logging
import os
import pty
import re
import subprocess
import sys
from io import StringIO
from typing import Any

import pytest

from triggerer.observability.logging_terminal import Brief, TerminalRenderer

_AT = "2026-11-28T08:01:33.070552Z"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_ERROR = "no broker has answered for 31 s"


def render(width: int = 200, *, is_whole: bool = False, **line: Any) -> str:
    renderer = TerminalRenderer(StringIO(), is_whole=is_whole, width=lambda: width)
    line = {"timestamp": _AT, "level": "info", "logger": "triggerer.x", **line}
    _, _, shown = _COLOURS.sub("", renderer(None, "", line)).partition("\n")
    return shown


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ({"event": "stopping", "signal": "SIGINT"}, "info    stopping: signal=SIGINT"),
        (
            {
                "event": "shared stream restarts",
                "level": "warning",
                "stream": "kafka orders (group g)",
                "delay_s": 0.58,
                "error": _ERROR,
            },
            f"warning shared stream restarts: kafka orders (group g), delay_s=0.58: {_ERROR}",
        ),
        (
            {"event": "DAG file", "level": "error", "file": "a.py", "line": 5, "reason": "no"},
            "error   DAG file: a.py:5: no",
        ),
        (
            {
                "event": "run failed",
                "level": "warning",
                "dag_id": "d",
                "run_id": "r",
                "error": "E: 1\nmore",
            },
            "warning run failed: d r: E: 1",
        ),
        (
            {
                "event": "started",
                "summary": "6 DAGs, 5 watchers",
                "hint": "look with: triggerer dags list",
                "parts": ["scheduler"],
                "database": "x",
            },
            "info    started: 6 DAGs, 5 watchers (look with: triggerer dags list)",
        ),
        (
            {"event": "upgraded", "before": None, "database": "the database x", "now": "0017"},
            "info    upgraded: the database x, now=0017",
        ),
        (
            {"event": "many", "a": 1, "b": ["x", "y"], "c": 3, "d": 4},
            "info    many: a=1, b=[x, y], c=3",
        ),
        (
            {"event": "Shared stream group started key=('s', 'q')", "stream": "sqs q"},
            "info    Shared stream group started key=('s', 'q')",
        ),
    ],
)
def test_a_line_has_its_time_in_utc_and_what_matters(line: dict[str, Any], shown: str) -> None:
    assert render(**line) == f"08:01:33Z {shown}"


def test_at_debug_a_line_has_all_its_fields_and_its_logger() -> None:
    shown = render(event="many", is_whole=True, a=1, b=2, c=3, d=4)
    assert shown == "08:01:33Z info    many: a=1, b=2, c=3, d=4 [triggerer.x]"


def test_a_long_line_is_continued_under_its_text_and_breaks_no_word() -> None:
    run_id = "asset_triggered__2026-11-28T08:23:33.989182+00:00"
    shown = render(60, event="run failed", dag_id="d", run_id=run_id, error="x " * 40)
    first, *others = shown.splitlines()
    assert run_id in shown
    assert max(map(len, (first, *others))) <= 60
    assert others
    assert all(line.startswith(" " * 10) for line in others)


def test_the_day_is_told_once_and_when_it_changes() -> None:
    renderer = TerminalRenderer(StringIO(), is_whole=False)
    lines = [
        _COLOURS.sub("", renderer(None, "", {"timestamp": at, "level": "info", "event": "e"}))
        for at in (_AT, _AT, "2026-11-29T00:00:00.1Z")
    ]
    line = "08:01:33Z info    e"
    assert lines == [
        f"2026-11-28 (UTC)\n{line}",
        line,
        "2026-11-29 (UTC)\n00:00:00Z info    e",
    ]


def test_frames_of_libraries_are_told_at_debug_only() -> None:
    try:
        json.loads("{")  # a frame of the standard library, which must stay in the traceback
    except ValueError as error:
        ours = error
    library = compile("def f(g):\n    g()", "/venv/lib/site-packages/aiokafka/client.py", "exec")
    space: dict[str, Any] = {}
    exec(library, space)

    def fail() -> None:
        raise ours

    with pytest.raises(json.JSONDecodeError) as raised:
        space["f"](fail)
    line = {"event": "it failed", "level": "error", "exc_info": raised.value}
    assert "aiokafka" not in render(**line)
    assert "1 frames of libraries" in render(**line)
    assert "in fail" in render(**line)
    assert "site-packages/aiokafka/client.py" in render(is_whole=True, **line)


def _record(name: str, message: Any, at: float, *, level: int = logging.INFO) -> logging.LogRecord:
    record = logging.LogRecord(name, level, "f.py", 1, message, (), None)
    record.created = at
    return record


def test_clients_of_brokers_are_not_heard() -> None:
    brief = Brief()
    assert not brief.filter(_record("aiokafka.conn", "no", 0, level=logging.ERROR))
    assert not brief.filter(_record("azure.servicebus", "no", 0, level=logging.ERROR))
    assert brief.filter(_record("triggerer.x", {"event": "no"}, 0))
    assert brief.filter(_record("watchers.kafka", "no", 0))


def test_a_plugin_and_the_start_of_a_group_are_heard_again_after_ten_quiet_minutes() -> None:
    brief = Brief()
    start = {"event": "Shared stream group started key=k"}
    said = [
        (name, at)
        for at in (0, 500, 1000, 1700)
        for name, message in (("producers.kafka", "reading a[0]"), ("triggerer.group", start))
        if brief.filter(_record(name, message, at))
    ]
    assert said == [
        ("producers.kafka", 0),
        ("triggerer.group", 0),
        ("producers.kafka", 1700),
        ("triggerer.group", 1700),
    ]
    # Two actions of a person are two lines.
    stored = {"event": "DAG files stored", "dags": 1}
    assert [brief.filter(_record("triggerer.x", stored, at)) for at in (0, 1)] == [True, True]


_PROGRAM = """
import structlog
from triggerer.config import CoreSettings
from triggerer.observability.logging_setup import set_up_logging

set_up_logging(CoreSettings(log_format="{log_format}"))
structlog.get_logger("triggerer.x").warning("run failed", run_id="r", error="password=hunter2")
"""


@pytest.mark.parametrize("log_format", ["auto", "console"])
def test_a_terminal_gets_short_lines_without_secrets(log_format: str) -> None:
    ours, theirs = pty.openpty()
    program = _PROGRAM.format(log_format=log_format)
    subprocess.run([sys.executable, "-c", program], stderr=theirs, check=True)
    os.close(theirs)
    told = _COLOURS.sub("", os.read(ours, 65536).decode())
    os.close(ours)
    assert re.search(r"\d\d:\d\d:\d\dZ warning run failed: r: password=", told)
    assert "hunter2" not in told


def test_elsewhere_lines_are_whole() -> None:
    program = _PROGRAM.format(log_format="auto")
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, check=True)
    line = json.loads(done.stderr)
    assert (line["event"], line["logger"], line["level"]) == (
        "run failed",
        "triggerer.x",
        "warning",
    )
