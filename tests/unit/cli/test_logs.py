"""`runs logs` prints a log."""

import errno
import json
import os
import re
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.cli.views import AT, run
from triggerer.cli.runs import logs as run_logs
from triggerer.domain.run_logs import log_path
from triggerer.errors import NoLog, TriggererError
from triggerer.processes.instance_ids import new_instance_id
from triggerer.worker.logs.hosts import record_host

LOG = b"hello\nh\xe9llo \x1b[1mbold\n"
"""With a byte that is no UTF-8, and one that JSON escapes."""


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = tmp_path / "run.log"
    path.write_bytes(LOG)
    found = replace(run(None), log_path=str(path))
    monkeypatch.setattr(run_logs, "read", lambda config, ask: found)
    return path


def test_the_log_is_printed_byte_for_byte(log: Path, capsysbinary: Any) -> None:
    run_logs.logs("d", "r")
    assert capsysbinary.readouterr().out == LOG


def test_as_json_it_is_the_text_of_one_object_whatever_the_tasks_printed(
    log: Path, capsysbinary: Any
) -> None:
    run_logs.logs("d", "r", json=True)
    shown = json.loads(capsysbinary.readouterr().out)
    assert shown["log"] == "hello\nh\ufffdllo \x1b[1mbold\n"
    assert (shown["state"], shown["log_path"]) == ("success", str(log))


def test_a_full_disk_behind_the_output_is_no_error_of_the_log(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Path("/dev/full").open("wb", buffering=0) as full:
        monkeypatch.setattr("sys.stdout", SimpleNamespace(buffer=full))
        with pytest.raises(OSError, match="No space left on device"):
            run_logs.logs("d", "r")


def test_a_log_that_cannot_be_read_is_named(log: Path) -> None:
    log.unlink()
    log.mkdir()
    with pytest.raises(TriggererError, match=r"the log of .* cannot be read: .*Is a directory"):
        run_logs.logs("d", "r")


def test_a_log_whose_disk_fails_is_named(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("triggerer.worker.logs.reading.next_hole", fail)
    with pytest.raises(TriggererError, match=r"the log of .* cannot be read: .*Input/output error"):
        run_logs.logs("d", "r")


HERE = new_instance_id()
ELSEWHERE = "another:17391:7e812030"


@pytest.mark.parametrize(
    ("state", "started_at", "executor", "said"),
    [
        ("queued", None, HERE, "is queued: nothing is logged yet"),
        ("queued", None, ELSEWHERE, "is queued: nothing is logged yet"),
        ("running", AT, HERE, "waits for its worker: nothing is logged yet"),
        ("running", None, ELSEWHERE, "waits for its worker: nothing is logged yet"),
        ("cancelled", AT, HERE, "is cancelled and has no log"),
        ("success", AT, ELSEWHERE, "machine of the executor another:17391:7e812030$"),
        ("running", AT, ELSEWHERE, "another:17391:7e812030, unless the run still waits for its"),
    ],
    # Without `ids`, a case is named after its parameters, and `HERE` contains a process id. But all
    # pytest workers must collect the same names.
    ids=["queued", "requeued", "claimed", "claimed elsewhere", "cancelled", "ended", "running"],
)
def test_why_there_is_no_log(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    state: str,
    started_at: datetime | None,
    executor: str,
    said: str,
) -> None:
    row = replace(
        run(None),
        state=state,
        started_at=started_at,
        executor=executor,
        log_path=str(tmp_path / "none.log"),
    )
    monkeypatch.setattr(run_logs, "read", lambda config, ask: row)
    with pytest.raises(TriggererError) as refused:
        run_logs.logs("d", "r", json=True)
    assert re.search(said, f"{refused.value.message}\n{refused.value.hint or ''}", re.MULTILINE)


@pytest.mark.parametrize(
    ("state", "said"),
    [("queued", "is queued: nothing is logged yet"), ("cancelled", "is cancelled and has no log")],
)
def test_a_run_that_nobody_claimed_has_no_log(
    monkeypatch: pytest.MonkeyPatch, state: str, said: str
) -> None:
    row = replace(run(None), state=state, executor=None, started_at=None, log_path=None)
    monkeypatch.setattr(run_logs, "read", lambda config, ask: row)
    with pytest.raises(TriggererError, match=said):
        run_logs.logs("d", "r")


def test_the_log_of_an_earlier_attempt_here_is_not_printed_for_an_attempt_on_another_host(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsysbinary: Any
) -> None:
    record_host(tmp_path, HERE)
    path = Path(log_path(str(tmp_path), "d", "r"))
    path.parent.mkdir()
    path.write_bytes(b"the first attempt\n")
    row = replace(run(None), state="success", executor=ELSEWHERE, log_path=str(path))
    monkeypatch.setattr(run_logs, "read", lambda config, ask: row)
    with pytest.raises(NoLog) as refused:
        run_logs.logs("d", "r")
    assert ELSEWHERE in str(refused.value.hint)
    record_host(tmp_path, ELSEWHERE)
    run_logs.logs("d", "r")
    assert capsysbinary.readouterr().out == b"the first attempt\n"
