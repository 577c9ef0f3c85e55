"""Imports are most of a command's time, so each command imports only the modules that it needs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from triggerer.cli.app import COMMANDS, app

_RUN = """
import json, sys
from triggerer.cli.main import main
try:
    main()
finally:
    sys.stderr.write(json.dumps(list(sys.modules)))
"""

# The modules that are slow to import, by the part that needs them.
STORE = {"sqlalchemy", "alembic", "aiosqlite", "asyncpg"}
LOG = {"structlog", "rich.console", "pygments"}
SERVICE = {"jinja2", "opentelemetry", "prometheus_client", "uvloop", "watchfiles"}
USERS = {"aiokafka", "pandas", "pyarrow", "pyspark", "watchers", "producers"}
COMMAND_MODULES = {target.partition(":")[0] for target, _ in COMMANDS.values()}


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


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_without_a_command_none_is_imported(tmp_path: Path, arguments: list[str]) -> None:
    loaded = loaded_by(tmp_path, *arguments)
    unused = {"triggerer.config", "pydantic"} | LOG | STORE | SERVICE | USERS
    assert loaded & (unused | COMMAND_MODULES) == set()


def test_the_help_of_a_command_reads_neither_settings_nor_the_database(tmp_path: Path) -> None:
    loaded = loaded_by(tmp_path, "dags", "list", "--help")
    unused = {"triggerer.config"} | LOG | STORE | SERVICE | USERS
    assert loaded & (unused | COMMAND_MODULES) == {"triggerer.cli.dags.commands"}


def test_showing_the_settings_opens_no_database(tmp_path: Path) -> None:
    loaded = loaded_by(tmp_path, "config", "show", "--json")
    assert loaded & (STORE | LOG | SERVICE | USERS) == set()


def test_checking_opens_no_database(tmp_path: Path) -> None:
    assert loaded_by(tmp_path, "check", "--json") & (STORE | SERVICE | USERS) == set()


@pytest.mark.full
@pytest.mark.parametrize(
    "arguments",
    [
        ["dags", "list"],
        ["runs", "list"],
        ["assets", "events"],
        ["watchers", "list"],
        ["assets", "list", "--json"],
        ["db", "check"],
    ],
)
def test_a_query_of_sqlite_imports_only_what_it_needs(tmp_path: Path, arguments: list[str]) -> None:
    loaded_by(tmp_path, "db", "migrate")
    loaded = loaded_by(tmp_path, *arguments)
    assert {"sqlalchemy", "aiosqlite"} <= loaded
    unused = {"alembic", "asyncpg", "sqlalchemy.dialects.postgresql"} | LOG | SERVICE | USERS
    assert loaded & unused == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_of_each_what_its_own_help_says_first(name: str) -> None:
    listed = get_command(app).commands[name]  # type: ignore[attr-defined]
    loaded = listed.load()
    assert loaded.name == name
    assert loaded.help.partition("\n\n")[0].replace("\n", " ") == listed.help


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_of_a_group_names_each_of_its_commands(name: str) -> None:
    loaded = get_command(app).commands[name].load()  # type: ignore[attr-defined]
    groups = [loaded, *getattr(loaded, "commands", {}).values()]
    for group in groups:
        named = set(re.findall(r"[a-z]+", group.help))
        assert set(getattr(group, "commands", ())) <= named
