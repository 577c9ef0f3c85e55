"""What a command imports is most of the time that it takes: each imports what it needs, and no more."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

_RUN = """
import json, sys
from triggerer.cli.main import main
try:
    main()
finally:
    sys.stderr.write(json.dumps(list(sys.modules)))
"""

# What is slow to import, by who needs it.
STORE = {"sqlalchemy", "alembic", "aiosqlite", "asyncpg", "structlog"}
SERVICE = {"jinja2", "opentelemetry", "prometheus_client", "uvloop", "watchfiles"}
USERS = {"aiokafka", "pandas", "pyarrow", "pyspark", "watchers", "producers"}


def loaded_by(folder: Path, *arguments: str) -> set[str]:
    (folder / "triggerer.toml").write_text('[core]\nhome = "."\ndags_folder = "dags"\n')
    (folder / "dags").mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", _RUN, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize("arguments", [["--help"], ["dags", "list", "--help"], ["--version"]])
def test_help_reads_neither_settings_nor_the_database(tmp_path: Path, arguments: list[str]) -> None:
    assert (
        loaded_by(tmp_path, *arguments) & ({"triggerer.config"} | STORE | SERVICE | USERS) == set()
    )


def test_showing_the_settings_opens_no_database(tmp_path: Path) -> None:
    assert loaded_by(tmp_path, "config", "show", "--json") & (STORE | SERVICE | USERS) == set()


def test_checking_opens_no_database(tmp_path: Path) -> None:
    unused = (STORE - {"structlog"}) | SERVICE | USERS
    assert loaded_by(tmp_path, "check", "--json") & unused == set()


@pytest.mark.parametrize("arguments", [["dags", "list"], ["runs", "list"], ["assets", "events"]])
def test_reading_from_sqlite_imports_what_that_takes(tmp_path: Path, arguments: list[str]) -> None:
    loaded_by(tmp_path, "db", "migrate")
    loaded = loaded_by(tmp_path, *arguments, "--json")
    assert {"sqlalchemy", "aiosqlite"} <= loaded
    assert loaded & ({"alembic", "asyncpg"} | SERVICE | USERS) == set()
