"""The file that has a run's API token."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from triggerer.worker.api_token import FILE_VARIABLE, offered


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FILE_VARIABLE, "")


def offered_file() -> Path:
    return Path(os.environ[FILE_VARIABLE])


def test_only_the_owner_can_read_the_file_and_it_is_deleted_afterwards(tmp_path: Path) -> None:
    with offered("secret", tmp_path, run_pk=7, epoch=1):
        assert offered_file().read_text() == "secret"
        assert stat.S_IMODE(offered_file().stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == []


def test_an_attempt_deletes_the_file_of_an_earlier_attempt_that_was_killed(tmp_path: Path) -> None:
    killed = offered("old", tmp_path, run_pk=7, epoch=1)
    killed.__enter__()
    with offered("new", tmp_path, run_pk=7, epoch=2):
        assert [path.read_text() for path in tmp_path.iterdir()] == ["new"]


def test_runs_of_executors_that_share_a_folder_keep_their_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In containers, two processes may have the same id.
    monkeypatch.setattr(os, "getpid", lambda: 12)
    with offered("one", tmp_path, run_pk=7, epoch=1):
        one = offered_file()
        with offered("other", tmp_path, run_pk=70, epoch=1):
            assert offered_file().read_text() == "other"
        assert one.read_text() == "one"


def test_without_a_token_there_is_no_file(tmp_path: Path) -> None:
    with offered("", tmp_path, run_pk=7, epoch=1):
        assert list(tmp_path.iterdir()) == []
        assert os.environ[FILE_VARIABLE] == ""


def test_a_run_continues_without_its_token_if_the_file_cannot_be_written(tmp_path: Path) -> None:
    with offered("secret", tmp_path / "absent", run_pk=7, epoch=1):
        assert os.environ[FILE_VARIABLE] == ""
