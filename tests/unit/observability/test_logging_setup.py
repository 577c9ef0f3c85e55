"""The lines that reach the log."""

import json
import logging
import os
import subprocess
import sys
from typing import Any

import pytest

from triggerer.observability.logging_setup import SeldomRepeats


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def seldom(clock: Clock) -> SeldomRepeats:
    return SeldomRepeats(["aiokafka"], every_s=10, now=clock)


def _record(name: str, message: str) -> logging.LogRecord:
    return logging.LogRecord(name, logging.ERROR, "f.py", 1, message, ("x",), None)


def test_a_library_says_the_same_thing_once_in_a_while_and_how_often_it_was_withheld(
    seldom: SeldomRepeats, clock: Clock
) -> None:
    passed = []
    for clock.at in range(25):
        if seldom.filter(record := _record("aiokafka.conn", "cannot reach %s")):
            passed.append(record.getMessage())
    assert passed == [
        "cannot reach x",
        "cannot reach x (and 9 times more before)",
        "cannot reach x (and 9 times more before)",
    ]


def test_a_wall_clock_that_is_set_back_drops_no_warning(
    seldom: SeldomRepeats, clock: Clock
) -> None:
    before, after = (_record("aiokafka.conn", "cannot reach %s") for _ in range(2))
    after.created = before.created - 3600
    assert seldom.filter(before)
    clock.at += 10
    assert seldom.filter(after)


def test_another_message_and_another_library_are_not_withheld(seldom: SeldomRepeats) -> None:
    assert seldom.filter(_record("aiokafka.conn", "one %s"))
    assert seldom.filter(_record("aiokafka.conn", "two %s"))
    assert seldom.filter(_record("triggerer.x", "one %s"))
    assert seldom.filter(_record("triggerer.x", "one %s"))


def test_a_library_whose_messages_all_differ_is_not_remembered_for_ever(
    seldom: SeldomRepeats, clock: Clock
) -> None:
    for number in range(5_000):
        clock.at = number / 10
        assert seldom.filter(_record("aiokafka.conn", f"failed: {number}"))
    # The filter still remembers the messages of the last ten seconds.
    clock.at = 500
    assert not seldom.filter(_record("aiokafka.conn", "failed: 4999"))
    assert seldom.remembered <= 1_000


_FIRST_LINE = """
import logging, sys
from triggerer.config import CoreSettings
from triggerer.observability.logging_setup import LazyLogger, set_up_logging_when_used

set_up_logging_when_used(CoreSettings(log_level="warning", log_format="json"))
ours = LazyLogger("ours")
before = "structlog" in sys.modules
{log}
print(before, "structlog" in sys.modules)
"""


@pytest.mark.parametrize(
    ("log", "logged", "is_imported"),
    [
        ("", None, False),
        ('logging.getLogger("a.library").info("unheard")', None, False),
        ('ours.info("unheard")', None, True),
        ('ours.warning("heard", n=1)', {"logger": "ours", "n": 1}, True),
        ('logging.getLogger("a.library").warning("%s", "heard")', {"logger": "a.library"}, True),
    ],
)
def test_logging_may_be_set_up_with_the_first_line(
    log: str, logged: dict[str, Any] | None, is_imported: bool
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FIRST_LINE.format(log=log)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == f"False {is_imported}\n"
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    if logged is None:
        assert lines == []
    else:
        (line,) = lines
        assert line.items() >= {"event": "heard", "level": "warning", **logged}.items()


_RAISES = """
import structlog
from triggerer.config import CoreSettings
from triggerer.observability.logging_setup import set_up_logging

set_up_logging(CoreSettings(log_format={log_format!r}))

def connect(password):
    raise ValueError("refused")

try:
    connect("hunter" + "2")
except ValueError:
    structlog.get_logger("ours").exception("failed")
"""


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_traceback_shows_no_local_variables(log_format: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _RAISES.format(log_format=log_format)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "ValueError" in done.stderr
    assert "connect" in done.stderr
    assert "hunter2" not in done.stderr


def test_json_is_utf_8_whatever_the_locale() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FIRST_LINE.format(log='ours.warning("grün")')],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        timeout=60,
        check=True,
    )
    assert json.loads(done.stderr)["event"] == "grün"


def test_values_that_json_lacks_are_logged_all_the_same() -> None:
    log = r"ours.warning('\udcff.txt', number=1 << 70, ways={(1, 2): 3}); print('\udcff', file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", _FIRST_LINE.format(log=log)],
        capture_output=True,
        timeout=60,
        check=True,
    )
    line, printed = done.stderr.splitlines()
    assert json.loads(line)["event"] == "\udcff.txt"
    assert json.loads(line)["number"] == 1 << 70
    assert printed == rb"\udcff"
