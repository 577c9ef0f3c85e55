"""Bugs in the scheduling by partition keys, put one at a time into a copy of the package: the plays find each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tests
from tests.simulation import planted

OURS = Path(__file__).parent / "bugs"
PLAYS = 1_000
TIMEOUT_S = 280
# The others go through the soak.
QUICK = {"each_asset_has_the_mapper_of_the_others"}
# Under one lock on SQLite they would be none.
CONCURRENT = "keys_are_divided_without_a_lock"


def _find(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Play with the package in a folder, and with our tests."""
    root = Path(tests.__file__).parent.parent
    return subprocess.run(
        [sys.executable, "-m", "tests.properties.find_plays", "--plays", str(PLAYS), *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{root}"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(bug, marks=() if bug in QUICK else pytest.mark.soak)
        for bug in sorted(patch.stem for patch in OURS.glob("*.patch"))
    ],
)
def test_plays_find_a_planted_bug(bug: str, tmp_path: Path) -> None:
    planted.apply(OURS / f"{bug}.patch", tmp_path)
    _check_found(_find(tmp_path))


@pytest.mark.soak
@pytest.mark.services
def test_plays_on_postgresql_find_schedulers_that_do_not_wait_for_one_another(
    clocked_postgres_url: str, tmp_path: Path
) -> None:
    planted.plant(CONCURRENT, tmp_path)
    _check_found(_find(tmp_path, "--url", clocked_postgres_url))


def _check_found(ran: subprocess.CompletedProcess[str]) -> None:
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "has other runs than the model" in ran.stdout
