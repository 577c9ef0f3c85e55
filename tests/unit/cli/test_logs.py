"""`runs logs`: what is printed of a log."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.views import run
from triggerer.cli import runs
from triggerer.errors import TriggererError

LOG = b"hello\nh\xe9llo \x1b[1mbold\n"
"""With a byte that is no UTF-8, and one that JSON escapes."""


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = tmp_path / "run.log"
    path.write_bytes(LOG)
    found = ([replace(run(None), log_path=str(path))], [])
    monkeypatch.setattr(runs, "read", lambda config, ask: found)
    return path


def test_the_log_is_printed_byte_for_byte(log: Path, capsysbinary: Any) -> None:
    runs.logs("d", "r")
    assert capsysbinary.readouterr().out == LOG


def test_as_json_it_is_the_text_of_one_object_whatever_the_tasks_printed(
    log: Path, capsysbinary: Any
) -> None:
    runs.logs("d", "r", json=True)
    shown = json.loads(capsysbinary.readouterr().out)
    assert shown["log"] == "hello\nh\ufffdllo \x1b[1mbold\n"
    assert (shown["state"], shown["log_path"]) == ("success", str(log))


def test_a_log_that_lies_elsewhere_is_an_error_that_says_where(log: Path) -> None:
    log.unlink()
    with pytest.raises(TriggererError, match="machine of the executor vm:17391"):
        runs.logs("d", "r", json=True)
