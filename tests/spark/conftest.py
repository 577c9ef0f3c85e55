"""A home with an archive of Spark's classes, made once for the session, and sessions on it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.services.availability import skip_or_fail
from tests.spark.processes import start_python
from triggerer.errors import SubmitFailed
from triggerer.spark import SparkSettings, close_session, open_session
from triggerer.spark.classic import find_installation


@pytest.fixture(scope="session", autouse=True)
def _spark_is_there(tmp_path_factory: pytest.TempPathFactory) -> None:
    try:
        find_installation(tmp_path_factory.mktemp("probe"))
    except SubmitFailed as absent:
        skip_or_fail(str(absent))


@dataclass(frozen=True)
class Trained:
    """A home, and what two processes said that were told at once to make its archive."""

    home: Path
    made: list[str]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    home = tmp_path_factory.mktemp("home with a space")
    code = "from triggerer.spark.training import train; print(train(home))"
    with start_python(code, home) as one, start_python(code, home) as other:
        made = [process.communicate(timeout=280) for process in (one, other)]
    assert (one.returncode, other.returncode) == (0, 0), made
    return Trained(home, [shown.splitlines()[-1] for shown, _ in made])


@pytest.fixture(scope="session")
def home(trained: Trained) -> Path:
    return trained.home


@pytest.fixture(scope="module")
def spark(home: Path) -> Iterator[Any]:
    """One classic session in this process, gone before the next module looks for Javas left behind."""
    session = open_session(
        SparkSettings(master="local[2]"), home=home, app_name="tests", train_after=None
    )
    yield session
    close_session(session)
