"""Whether a log on this host belongs to the executor that ran the run's last attempt."""

from __future__ import annotations

from pathlib import Path

import pytest

from triggerer.domain.run_logs import log_path
from triggerer.processes import instance_ids
from triggerer.processes.instance_ids import new_instance_id
from triggerer.worker.logs.hosts import is_log_of, record_host

ELSEWHERE = "another:17391:7e812030"


def test_a_log_in_a_folder_of_this_host_is_not_that_of_an_executor_on_another_host(
    tmp_path: Path,
) -> None:
    here = new_instance_id()
    path = log_path(str(tmp_path), "d", "r")
    record_host(tmp_path, here)
    assert is_log_of(path, here)
    assert not is_log_of(path, ELSEWHERE)
    assert is_log_of(path, None)


def test_in_a_shared_folder_each_host_finds_the_logs_of_all_hosts(tmp_path: Path) -> None:
    path = log_path(str(tmp_path), "d", "r")
    for _ in range(2):
        record_host(tmp_path, new_instance_id())
        record_host(tmp_path, ELSEWHERE)
    assert is_log_of(path, ELSEWHERE)


def test_a_host_that_was_renamed_finds_its_earlier_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = new_instance_id()
    record_host(tmp_path, before)
    monkeypatch.setattr(instance_ids, "_host", lambda: "renamed")
    record_host(tmp_path, new_instance_id())
    assert is_log_of(log_path(str(tmp_path), "d", "r"), before)


def test_a_folder_in_which_nobody_has_recorded_a_host_is_read(tmp_path: Path) -> None:
    assert is_log_of(log_path(str(tmp_path), "d", "r"), ELSEWHERE)


def test_other_users_cannot_look_into_the_folder(tmp_path: Path) -> None:
    record_host(tmp_path / "home", ELSEWHERE)
    for folder in ("home", "home/logs", "home/logs/.hosts"):
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700
