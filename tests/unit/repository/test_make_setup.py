"""What `make setup` says, with an interpreter that installs nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
_INTERPRETER = """#!/bin/sh
case "$1 $2" in
  "--version "*) echo "Python 3.11.7" ;;
  "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  "-m pip") echo "$@" >>pip.log; [ ! -e refuse ] || { echo "ERROR: no network" >&2; exit 1; } ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "requirements.lock").write_text(
        "anyio==4.6 \\\n    --hash=x\npip==24 \\\n    --hash=y\n"
    )
    (tmp_path / "pyproject.toml").touch()
    interpreter = tmp_path / "python"
    interpreter.write_text(_INTERPRETER)
    interpreter.chmod(0o755)
    return tmp_path


def make_setup(checkout: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name[:4] != "MAKE"}
    return subprocess.run(
        ["make", "setup", f"PYTHON={checkout}/python"],
        cwd=checkout,
        env=environment,
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )


def test_it_says_what_it_does_and_how_long_that_took_and_then_nothing(checkout: Path) -> None:
    done = make_setup(checkout)
    assert (done.returncode, done.stderr) == (0, "")
    said = re.sub(r"in \d+ s", "in N s", done.stdout).splitlines()
    assert said == [
        f"make setup: building .venv with {checkout}/python (Python 3.11.7)",
        "make setup: installing the packages of requirements.lock, with their hashes (up to 2)",
        "make setup: installing triggerer, and compiling",
        "make setup: done in N s; next: make demo, or .venv/bin/triggerer --help",
    ]
    again = make_setup(checkout)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    os.utime(checkout / "requirements.lock", (2**31, 2**31))
    assert make_setup(checkout).stdout.startswith("make setup: bringing .venv up to date\n")


def test_it_stops_at_the_step_that_fails_and_tries_again_next_time(checkout: Path) -> None:
    (checkout / "refuse").touch()
    for _ in range(2):
        done = make_setup(checkout)
        assert done.returncode == 2
        assert "ERROR: no network" in done.stderr
        assert "done in" not in done.stdout
    assert len((checkout / "pip.log").read_text().splitlines()) == 2
    (checkout / "refuse").unlink()
    assert "done in" in make_setup(checkout).stdout
