"""The file that has a run's API token."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from triggerer.worker import api_token
from triggerer.worker.api_token import FILE_VARIABLE, offered


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FILE_VARIABLE, "")


def offered_file() -> Path:
    return Path(os.environ[FILE_VARIABLE])


def test_only_the_owner_can_read_the_file_and_it_is_gone_afterwards() -> None:
    with offered("secret"):
        assert offered_file().read_text() == "secret"
        # A second reader begins at the first byte, too.
        assert offered_file().read_text() == "secret"
        assert stat.S_IMODE(offered_file().stat().st_mode) == 0o600
    assert not offered_file().exists()


def test_without_a_token_there_is_no_file() -> None:
    with offered(""):
        assert os.environ[FILE_VARIABLE] == ""


def test_a_run_continues_without_its_token_if_the_file_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(**_: Any) -> int:
        raise OSError("too many open files")

    monkeypatch.setattr(api_token, "TemporaryFile", fail)
    with offered("secret"):
        assert os.environ[FILE_VARIABLE] == ""
