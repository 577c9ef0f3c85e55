"""The user who runs Spark needs a name, because Hadoop asks for it."""

import os
import pwd
from typing import Any

import pytest

from triggerer.config import SparkSettings
from triggerer.errors import SubmitFailed
from triggerer.worker.spark.sessions import classic


def test_a_user_without_a_name_is_told_so_before_a_jvm_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_entry(_uid: int) -> None:
        raise KeyError

    # OpenShift invents user ids in this way.
    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    nowhere: Any = None
    with pytest.raises(SubmitFailed, match=f"the user {os.geteuid()}, which has no name") as failed:
        classic.open_classic(SparkSettings(), nowhere, app_name="x")
    assert "/etc/passwd" in str(failed.value.hint)
