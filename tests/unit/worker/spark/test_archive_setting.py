"""Whether a session that lives on has an archive of Spark's classes made."""

from datetime import timedelta
from pathlib import Path

import pytest

from triggerer.config import SparkSettings
from triggerer.worker.spark import classic, session


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (SparkSettings(), True),
        (SparkSettings(archive_classes=False), False),
        (SparkSettings(master="spark://host:7077"), False),
    ],
    ids=["by default", "not where it is off", "not on a cluster"],
)
def test_an_archive_is_made(
    settings: SparkSettings, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[timedelta] = []
    monkeypatch.setattr(classic, "find_installation", lambda home: home)
    monkeypatch.setattr(classic, "open_classic", lambda *_, **__: object())
    monkeypatch.setattr(session, "train_in_background", lambda _, after: asked.append(after))
    session.open_session(settings, home=tmp_path, app_name="test")
    assert bool(asked) is expected
