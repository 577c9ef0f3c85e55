"""A home with an archive of Spark's classes, and sessions on it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services.clusters.spark import TrainedHome
from triggerer.worker.spark import SparkSettings, close_session, open_session


@pytest.fixture(scope="session", autouse=True)
def _spark_is_there(trained_home: TrainedHome) -> None:
    """Skip or fail without Spark."""


@pytest.fixture(scope="session")
def home(trained_home: TrainedHome, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with an archive of Spark's classes.

    No other pytest worker uses this home, so `processes_of(home)` finds only Java processes of these tests.
    """
    home = tmp_path_factory.mktemp("home with a space")
    trained_home.lend_archive(home)
    return home


@pytest.fixture(scope="module")
def spark(home: Path) -> Iterator[Any]:
    """A classic session in this process. It ends before another module looks for Java processes left behind."""
    session = open_session(SparkSettings(master="local[2]"), home=home, app_name="tests")
    yield session
    close_session(session)
