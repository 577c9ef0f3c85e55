"""The commands as whole processes: their output, their errors and their exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer
from sqlalchemy import update

from tests.acceptance.commands import ENVIRONMENT, json_of, output_of, run_command
from tests.services.brokers.elasticmq import ElasticMqServer
from tests.services.process import free_ports
from tests.store.seeding import add_asset, add_dag, add_stream
from triggerer.cli.terminal.session import with_database
from triggerer.domain.events import Fence
from triggerer.domain.schedules import OnTime, schedule_to_json
from triggerer.store.database.transactions import Database
from triggerer.store.schema.models import Dag, Trigger, Watcher
from triggerer.timetables import CronTriggerTimetable
from watchers.kafka import KafkaEventTrigger
from watchers.pubsub import PubSubEventTrigger
from watchers.sqs import SqsEventTrigger

# The commands that report progress while they work.
NARRATING = {
    "standalone",
    "triggerer",
    "scheduler",
    "dag-processor",
    "executor",
    "api",
    "demo",
    "simulate",
    # This command prints a script.
    "completion",
}


def leaves() -> Iterator[tuple[list[str], Any]]:
    """Yield each command without subcommands: its path, and the command object that Typer has made."""
    from triggerer.cli.app import COMMANDS, app

    def walk(path: list[str], command: Any) -> Iterator[tuple[list[str], Any]]:
        inner = getattr(command, "commands", None)
        if inner is None:
            yield path, command
        for name, one in (inner or {}).items():
            yield from walk([*path, name], one)

    root: Any = typer.main.get_command(app)
    for name in COMMANDS:
        yield from walk([name], root.commands[name].load())


def options_of(command: Any) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts}


class Shell:
    """Runs commands in a folder, with a configuration whose home is that folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "triggerer.toml"
        self.config.write_text('[core]\nhome = "."\n')

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        changed = ENVIRONMENT | environment if environment else None
        return run_command(*arguments, cwd=self.folder, environment=changed)

    def ok(self, *arguments: str) -> str:
        return output_of(self.run(*arguments))

    def json(self, *arguments: str) -> Any:
        return json_of(self.run(*arguments, "--json"))

    def refused(self, *arguments: str, code: int = 1, **environment: str) -> str:
        done = self.run(*arguments, **environment)
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        assert done.stdout == ""
        return done.stderr


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture
def migrated(shell: Shell) -> Shell:
    shell.ok("db", "migrate")
    return shell


def test_every_command_takes_config() -> None:
    found = list(leaves())
    assert len(found) >= 40
    for path, command in found:
        assert "--config" in options_of(command), path


def test_help_shows_all_that_was_written() -> None:
    from typer.main import get_command

    from triggerer.cli.app import COMMANDS, app

    def texts(command: Any) -> Iterator[str]:
        yield command.help or ""
        yield from (getattr(option, "help", None) or "" for option in command.params)
        for inner in getattr(command, "commands", {}).values():
            yield from texts(inner)

    # Typer treats text in square brackets as markup, and does not show it.
    root: Any = get_command(app)
    shown = [text for name in COMMANDS for text in texts(root.commands[name].load())]
    assert [text for text in (*shown, *texts(root)) if "[" in text] == []


def test_the_version_is_printed(shell: Shell) -> None:
    assert re.fullmatch(r"triggerer \d+\.\d+\S*\n", shell.ok("--version"))


def test_migrating_prints_its_answer_alone(shell: Shell) -> None:
    answer = shell.json("db", "migrate")
    assert answer == {
        "database": f"the SQLite database {shell.folder}/triggerer.db",
        "changed": True,
        "revision": "0001_initial",
        "left": [],
    }


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ('[spark]\nmode = "yarn"', "'yarn'"),
        ('[spark]\nmode = "connect"', "remote is not set"),
        ('[database]\nurl = "mysql://db/x"', "'mysql' are not supported"),
    ],
)
def test_check_refuses_what_a_service_would(shell: Shell, setting: str, said: str) -> None:
    shell.config.write_text(f'[core]\nhome = "."\ndags_folder = "."\n{setting}\n')
    assert said in shell.refused("check")
    assert said in shell.refused("standalone")


def test_check_counts_as_people_do(shell: Shell) -> None:
    (shell.folder / "one.py").write_text("from triggerer import DAG\nwith DAG('one'):\n    pass\n")
    said = f"{shell.folder}: 1 file, 1 DAG, 0 watchers, 0 errors, 0 warnings\n"
    assert shell.ok("check", "--dags-folder", str(shell.folder)) == said


_WATCHING = """
from triggerer import Asset, AssetWatcher
from watchers.kafka import KafkaEventTrigger

orders = Asset("orders", watchers=[AssetWatcher("w", KafkaEventTrigger("orders"))])
"""


def test_check_says_what_is_wrong_with_a_connection_and_where(shell: Shell) -> None:
    (shell.folder / "dags").mkdir()
    (shell.folder / "dags" / "one.py").write_text(_WATCHING)
    said = shell.run("check")
    assert said.returncode == 1
    assert (
        "error: one.py:5: watcher 'w' of asset 'orders': there is no connection 'kafka'"
        in said.stderr
    )
    assert "add [connections.kafka] to " in said.stderr

    with shell.config.open("a") as file:
        file.write('[connections.kafka]\nbootstrap_server = "127.0.0.1:1"\n')
    said = shell.run("check", "--json")
    assert said.returncode == 1
    (error,) = json.loads(said.stdout)["errors"]
    assert (error["file"], error["line"]) == ("one.py", 5)
    assert "unknown key 'bootstrap_server' in [connections.kafka]" in error["reason"]
    assert "did you mean 'bootstrap_servers'?" in error["reason"]

    assert json.loads(shell.ok("check", "--offline", "--json"))["errors"] == []


def test_a_broker_that_is_away_is_a_warning_and_hides_nothing(shell: Shell) -> None:
    (shell.folder / "dags").mkdir()
    (shell.folder / "dags" / "one.py").write_text(_WATCHING)
    with shell.config.open("a") as file:
        file.write('[connections.kafka]\nbootstrap_servers = "127.0.0.1:1"\n')
    done = shell.run("check")
    assert done.returncode == 0, done.stderr
    (warning,) = done.stderr.splitlines()
    assert warning.startswith(
        "warning: one.py:5: watcher 'w' of asset 'orders': connection to Kafka at"
    )
    assert "is the broker running" in warning
    (shell.folder / "dags" / "two.py").write_text("import nothing_of_the_kind\n")
    done = shell.run("check", "--json")
    assert done.returncode == 1
    answer = json.loads(done.stdout)
    assert [error["file"] for error in answer["errors"]] == ["two.py"]
    assert [one["file"] for one in answer["warnings"]] == ["one.py"]


ONE_RUN = [["why"], *(["runs", name] for name in ("show", "logs", "cancel", "retry", "clear"))]
"""The commands about one run, which is named by its id or by --last."""
LISTS = {"list", "events", "next", "plan", "backfill"}
"""The last words of the commands that print many objects of one kind."""


def test_all_that_answers_takes_json_and_lists_take_a_limit() -> None:
    for path, command in leaves():
        options = options_of(command)
        if path[0] not in NARRATING:
            assert "--json" in options, path
        if path[-1] not in LISTS:
            continue
        (limit,) = [one for one in command.params if "--limit" in one.opts]
        assert limit.default == 100, path
        if path[-1] == "next" or path[0] == "tokens":
            # `dags next` has its DAG as an argument, and tokens have no DAG.
            continue
        assert "--dag" in options, path
        # A plan is about DAGs.
        assert {"--asset", "--state"} <= options or path == ["plan"], path


def test_a_list_of_commands_shows_the_whole_line_of_each_at_any_depth() -> None:
    for path, command in leaves():
        if len(path) > 1:
            assert command.short_help == command.help.partition("\n\n")[0], path


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["dags", "list", "--nonsense"],
        ["dags", "list", "--limit", "-1"],
        ["dags", "list", "--state", "sleeping"],
        ["assets", "list", "--state", "queued"],
        ["assets", "events", "--state", "declared"],
        ["dags", "trigger"],
        ["dags", "trigger", "x", "--params", "{"],
        ["assets", "emit", "x-a", "--extra", "{"],
        ["assets", "queued", "delete"],
        ["dags", "trigger", "x", "--logical-date", "soon"],
        ["dags", "trigger", "x", "--logical-date", "0001-01-01T00:00:00+01:00"],
        ["dags", "next", "x", "--limit", "-1"],
        ["watchers", "parked", "list", "--asset", "a", "--watcher", "b/c"],
        ["watchers", "replay", "a/w", "--from", "9999-12-31T23:59:59-01:00"],
        ["dags", "backfill", "x", "--from", "2026-01-01"],
        ["dags", "backfill", "x", "--reprocess", "some"],
        ["dags", "backfill", "--list", "--state", "queued"],
        ["dags", "backfill", "x", "--list", "--dag", "y"],
        ["dags", "backfill", "--list", "--params", "{}"],
        ["dags", "backfill", "x", "--partition-key", "a", "--params", "[]"],
        ["dags", "backfill", "x", "--state", "done"],
        ["assets", "queued", "list", "--state", "queued"],
        *([*command, "x"] for command in ONE_RUN),
        *([*command, "x", "r", "--last"] for command in ONE_RUN),
        ["runs", "logs", "x", "r", "--follow", "--json"],
        ["runs", "retry"],
        ["runs", "clear", "--dry-run"],
        ["runs", "retry", "x", "--dry-run"],
        ["runs", "retry", "x", "r", "--state", "failed"],
        ["runs", "retry", "x", "--last", "--state", "failed"],
        ["runs", "retry", "x", "--dag", "y"],
        ["runs", "retry", "--state", "success"],
        ["runs", "clear", "--state", "running"],
        ["runs", "clear", "--from", "yesterday"],
        ["runs", "clear", "--from", "2026-01-02", "--to", "2026-01-01"],
        ["dags", "backfill", "x", "--partition-key", "a", "--from", "2026-01-01"],
        ["dags", "test", "x", "--event", 'a={"n":}'],
        ["db", "clean", "--before", "999999d"],
        ["db", "clean", "--before", "0001-01-01T00:00:00+01:00"],
        ["why-not", os.fsdecode(b"\xff")],
    ],
)
def test_wrong_use_ends_with_2(shell: Shell, arguments: list[str]) -> None:
    assert shell.refused(*arguments, code=2)


_UNWRITABLE = "triggerer: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    ("arguments", "output", "code", "said"),
    [
        ("config show", ">&- 2>/dev/null", 0, ""),
        ("config show --json", ">&- <&- 2>&-", 0, ""),
        ("--help", ">/dev/full", 1, _UNWRITABLE),
        ("config show --json", ">/dev/full", 1, _UNWRITABLE),
        ("config show", "2>/dev/null | read line", 0, ""),
        ("config show --json", "| true", 0, ""),
    ],
)
def test_output_that_goes_nowhere_causes_no_traceback(
    shell: Shell, arguments: str, output: str, code: int, said: str
) -> None:
    command = f"set -o pipefail; {sys.executable} -m triggerer {arguments} {output}"
    done = subprocess.run(
        ["/bin/bash", "-c", command],
        cwd=shell.folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "", said)


def test_characters_that_the_terminal_lacks_are_escaped(shell: Shell) -> None:
    done = shell.run("config", "show", TRIGGERER__CORE__HOME="grün", PYTHONIOENCODING="ascii")
    assert r"/gr\xfcn/triggerer.db" in output_of(done)


def test_without_a_database_the_commands_say_what_to_do(shell: Shell) -> None:
    message = shell.refused("runs", "list")
    assert "there is no database" in message
    assert "hint: " in message
    assert "standalone" in message


@pytest.mark.parametrize("part", ["triggerer", "scheduler", "dag-processor", "executor"])
def test_on_sqlite_a_separate_service_is_refused_with_the_reason(shell: Shell, part: str) -> None:
    message = shell.refused(part)
    assert f"`triggerer {part}`" in message
    assert "SQLite" in message
    assert "PostgreSQL" in message
    assert not (shell.folder / "triggerer.db").exists()


def test_an_unknown_setting_is_refused_by_every_command_with_the_nearest(shell: Shell) -> None:
    message = shell.refused("dags", "list", TRIGGERER__EXECUTOR__WORKRES="3")
    assert message == (
        "triggerer: TRIGGERER__EXECUTOR__WORKRES: unknown key 'workres' in [executor];"
        " did you mean 'workers'?\n"
    )


def test_a_database_that_is_not_there_is_one_clear_line(shell: Shell) -> None:
    url = "postgresql://nobody:hunter2@127.0.0.1:1/nothing"
    message = shell.refused("runs", "list", TRIGGERER__DATABASE__URL=url)
    assert "127.0.0.1:1" in message
    assert "hunter2" not in message


def test_a_database_without_tables_is_one_error_with_what_to_do(shell: Shell) -> None:
    (shell.folder / "triggerer.db").touch()
    message, hint = shell.refused("runs", "list").splitlines()
    assert message.startswith("triggerer: the SQLite database ")
    assert hint == "  hint: run `triggerer db migrate`"


def test_config_show_names_the_origin_and_hides_secrets(shell: Shell) -> None:
    shell.config.write_text(
        '[core]\nhome = "."\n[connections.kafka]\nbootstrap_servers = "k:1"\n'
        'sasl_plain_password = "hunter2"\n'
    )
    done = shell.run(
        "config",
        "show",
        "--json",
        TRIGGERER__EXECUTOR__WORKERS="3",
        TRIGGERER__CONNECTIONS__KAFKA__SSL_PASSWORD="env:SSL_PASSWORD",
        SSL_PASSWORD="hunter3",
    )
    shown = {(row["section"], row["key"]): row for row in json.loads(done.stdout)}
    assert shown["executor", "workers"]["source"] == "TRIGGERER__EXECUTOR__WORKERS"
    assert shown["core", "home"]["value"] == str(shell.folder)
    assert shown["core", "home"]["source"] == f"{shell.config}:2"
    assert shown["api", "start"]["source"] == "default"
    assert shown["connections.kafka", "sasl_plain_password"]["value"] == "***"
    assert shown["connections.kafka", "ssl_password"]["value"] == "env:SSL_PASSWORD"
    assert "hunter" not in done.stdout + done.stderr


def test_events_are_emitted_and_listed_with_the_fields_of_the_contract(migrated: Shell) -> None:
    emitted = migrated.json(
        "assets", "emit", "x-orders", "--create", "--extra", '{"n": 1}', "--partition-key", "2026-01-01"
    )  # fmt: skip
    assert list(emitted) == [
        "id",
        "asset_name",
        "asset_uri",
        "extra",
        "timestamp",
        "source_watcher",
        "source_dag_id",
        "source_run_id",
        "source_task_id",
        "idempotency_key",
        "partition_key",
    ]
    assert emitted["partition_key"] == "2026-01-01"
    assert (emitted["asset_uri"], emitted["extra"]) == ("x-orders", {"n": 1})
    migrated.ok("assets", "emit", "x-orders", "--create", "--extra", "[1, 2]")
    events = migrated.json("assets", "events")
    assert [event["extra"] for event in events] == [{"payload": [1, 2]}, {"n": 1}]
    assert len(migrated.json("assets", "events", "--limit", "1")) == 1
    assert [asset["name"] for asset in migrated.json("assets", "list")] == ["x-orders"]


def test_an_asset_that_nobody_declares_is_made_with_a_warning_on_standard_error(
    migrated: Shell,
) -> None:
    done = migrated.run("assets", "emit", "x-new", "--create", "--json")
    assert json.loads(done.stdout)["asset_name"] == "x-new"
    assert "no DAG declares" in done.stderr


def test_an_asset_that_nobody_declares_is_refused_or_made_and_can_be_deleted(
    migrated: Shell,
) -> None:
    said = migrated.refused("assets", "emit", "x-new")
    assert said.startswith("triggerer: no DAG file declares the asset 'x-new'\n")
    assert "--create" in said
    for _ in range(2):
        migrated.ok("assets", "emit", "x-new", "--create")
    assert migrated.json("assets", "delete", "x-new") == {
        "asset_name": "x-new",
        "asset_uri": "x-new",
        "asset_events": 2,
        "queued_events": 0,
    }
    assert migrated.json("assets", "list") == migrated.json("assets", "events") == []
    assert "no asset 'x-new'" in migrated.refused("assets", "delete", "x-new")


def test_a_dag_is_deleted_only_once_it_is_stale_and_the_user_has_said_yes(migrated: Shell) -> None:
    async def seed(database: Database) -> None:
        await add_dag(database, "declared", None)
        await add_dag(database, "d", None, is_stale=True)

    with_database(migrated.config, seed)
    assert "not stale" in migrated.refused("dags", "delete", "declared", "--yes")
    said = migrated.refused("dags", "delete", "d")
    assert "the DAG 'd' would be deleted, with 0 runs, but a confirmation needs a terminal" in said
    assert migrated.json("dags", "delete", "d", "--yes") == {
        "dag_id": "d",
        "runs": 0,
        "logs": 0,
        "logs_elsewhere": 0,
    }
    assert "no DAG 'd'" in migrated.refused("dags", "delete", "d", "--yes")


def test_numbers_in_json_are_kept_or_refused(migrated: Shell) -> None:
    extra = '{"large": 1e20, "whole": 1e16, "zero": -0.0, "one": 1.0, "int": 1}'
    migrated.ok("assets", "emit", "x-a", "--create", "--extra", extra)
    shown = migrated.ok("assets", "events", "--json")
    for part in ('"large": 1e+20', '"whole": 1e+16', '"zero": -0.0', '"one": 1.0', '"int": 1'):
        assert part in shown
    for given, code, said in (
        ("18446744073709551616", 1, "an integer of more than 64 bits"),
        ("1e400", 2, "the number 1e400 is too large"),
        ("NaN", 2, "JSON has no NaN"),
    ):
        refused = migrated.refused(
            "assets", "emit", "x-a", "--create", "--extra", f'{{"n": {given}}}', code=code
        )
        assert said in refused


def test_plan_shows_what_a_folder_would_change_and_fails_for_a_broken_file(
    migrated: Shell,
) -> None:
    migrated.ok("assets", "emit", "x-orders", "--create")
    folder = migrated.folder / "new"
    folder.mkdir()
    (folder / "one.py").write_text(
        "from triggerer import DAG, Asset\nwith DAG('one', schedule=Asset('x-orders')):\n    pass\n"
    )
    plan = migrated.json("plan", "--dags-folder", "new")
    (dag,) = plan["dags"]
    assert (plan["events"], dag["dag_id"], dag["change"], dag["before"]) == (1, "one", "new", None)
    assert [run["asset_event_ids"] for run in dag["after"]["runs"]] == [[1]]
    (folder / "two.py").write_text("import nothing_of_the_kind\n")
    done = migrated.run("plan", "--dags-folder", "new")
    assert done.returncode == 1
    assert "error: two.py:1: " in done.stderr
    assert "one" in done.stdout


def test_plan_shows_as_many_dags_as_are_asked_for_and_times_in_utc(migrated: Shell) -> None:
    (migrated.folder / "new").mkdir()
    (migrated.folder / "new" / "two.py").write_text(
        "from triggerer import DAG\nwith DAG('one'): pass\nwith DAG('two'): pass\n"
    )
    arguments = ("plan", "--dags-folder", "new", "--since", "2026-01-01T01:00:00+01:00")
    for limit, expected in (("1", ["one"]), ("0", ["one", "two"]), ("100", ["one", "two"])):
        found = migrated.json(*arguments, "--limit", limit)
        assert [dag["dag_id"] for dag in found["dags"]] == expected
        assert (found["since"], found["errors"]) == ("2026-01-01T00:00:00+00:00", [])
        rows = migrated.ok(*arguments, "--limit", limit).splitlines()
        assert [row.split() for row in rows if row.startswith("  new")] == [
            ["new", dag_id] for dag_id in expected
        ]
    (migrated.folder / "new" / "two.py").write_text("import nothing_of_the_kind\n")
    done = migrated.run(*arguments, "--json")
    assert done.returncode == 1
    assert [error["file"] for error in json.loads(done.stdout)["errors"]] == ["two.py"]
    assert "'nope'" in migrated.refused(*arguments, "--dag", "nope")


def test_the_next_runs_are_a_list_with_a_limit(migrated: Shell) -> None:
    hourly = schedule_to_json(OnTime(CronTriggerTimetable("@hourly", timezone="UTC")))

    async def seed(database: Database) -> None:
        await add_dag(database, "ends", hourly, end_date=datetime(2026, 1, 1, 5, tzinfo=UTC),
                      start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=True)  # fmt: skip
        await add_dag(database, "hourly", hourly)
        await add_dag(database, "never", None)

    with_database(migrated.config, seed)
    assert len(migrated.json("dags", "next", "hourly")) == 100
    for option in ("--limit", "--count"):
        found = migrated.json("dags", "next", "hourly", option, "3")
        assert len(found) == 3
        assert found == sorted(found, key=lambda run: str(run["run_after"]))
    assert len(migrated.json("dags", "next", "hourly", "--limit", "0")) == 10_000
    assert len(migrated.json("dags", "next", "ends", "--limit", "0")) == 6
    assert migrated.json("dags", "next", "never") == []
    assert "'nope'" in migrated.refused("dags", "next", "nope")


def test_the_last_run_takes_the_place_of_an_id(migrated: Shell) -> None:
    async def seed(database: Database) -> None:
        await add_dag(database, "d", None)
        await add_dag(database, "new", None)
        await add_dag(database, "other", None)

    with_database(migrated.config, seed)
    ids = [migrated.json("dags", "trigger", "d")["run_id"] for _ in range(2)]
    migrated.json("dags", "trigger", "other")
    assert migrated.json("runs", "show", "d", "--last")["run_id"] == ids[1]
    assert migrated.json("why", "d", "--last")["run_id"] == ids[1]
    assert f"the run '{ids[1]}' is queued" in migrated.refused("runs", "logs", "d", "--last")
    cancelled = migrated.json("runs", "cancel", "d", "--last")
    assert cancelled == {"dag_id": "d", "run_id": ids[1], "state": "cancelled"}
    for command in ("retry", "clear"):
        assert migrated.json("runs", command, "d", "--last")["run_id"] == ids[1]
        migrated.json("runs", "cancel", "d", "--last")
    for command in ONE_RUN:
        assert "the DAG 'new' has no run" in migrated.refused(*command, "new", "--last")
        assert "no DAG 'nope'" in migrated.refused(*command, "nope", "--last")


def test_many_runs_are_queued_again_and_the_exit_code_says_whether_all_were(
    migrated: Shell,
) -> None:
    async def seed(database: Database) -> None:
        await add_dag(database, "d", None)
        await add_dag(database, "gone", None)

    with_database(migrated.config, seed)
    for dag in ("d", "d", "gone"):
        migrated.json("dags", "trigger", dag)
        migrated.json("runs", "cancel", dag, "--last")

    planned = migrated.json("runs", "retry", "d", "--state", "cancelled", "--dry-run")
    assert (planned["dry_run"], planned["queued"], planned["refused"]) == (True, 2, 0)
    done = migrated.json("runs", "retry", "d", "--state", "cancelled")
    assert done["runs"] == planned["runs"]
    assert [run["former_state"] for run in done["runs"]] == ["cancelled"] * 2
    nothing = migrated.run("runs", "retry", "--dag", "d")
    assert (nothing.returncode, nothing.stdout) == (0, "queued again: 0 runs\n")

    async def lose(database: Database) -> None:
        async with database.transaction() as session:
            await session.execute(update(Dag).where(Dag.dag_id == "gone").values(is_stale=True))

    with_database(migrated.config, lose)
    refused = migrated.run("runs", "clear", "--state", "cancelled")
    assert refused.returncode == 1
    assert refused.stdout == "queued again: 0 runs; refused: 1 run\n"
    assert "is left cancelled: the DAG 'gone' is gone from its file" in refused.stderr
    assert "no DAG 'nope'" in migrated.refused("runs", "retry", "--dag", "nope")


def test_unknown_objects_are_refused(migrated: Shell) -> None:
    for command in ("show", "cancel", "retry", "clear"):
        assert "no DAG 'nope'" in migrated.refused("runs", command, "nope", "r")
    times = ["--from", "2026-01-01", "--to", "2026-01-02"]
    assert "no DAG 'nope'" in migrated.refused("dags", "backfill", "nope", *times)
    assert "no backfill 7" in migrated.refused("dags", "backfill", "--cancel", "7")
    assert migrated.json("dags", "backfill", "--list") == []
    assert "no DAG 'nope'" in migrated.refused("dags", "backfill", "nope", "--partition-key", "a")
    assert "no asset 'nope'" in migrated.refused("watchers", "show", "nope", "w")
    assert "no asset 'nope'" in migrated.refused(
        "watchers", "replay", "nope/w", "--from", "earliest"
    )
    assert "ASCII" in migrated.refused("assets", "emit", "sché", "--create")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nope", "--from", "earliest"], "ASSET/NAME"),
        (["nope/w"], "--from"),
        (["nope/w", "--from", "yesterday"], "yesterday"),
    ],
)
def test_a_replay_that_is_asked_for_wrongly_is_wrong_use(
    migrated: Shell, arguments: list[str], said: str
) -> None:
    assert said in migrated.refused("watchers", "replay", *arguments, code=2)


def test_every_command_says_the_same_of_a_dag_that_is_not_there(migrated: Shell) -> None:
    said = {migrated.refused("dags", name, "nope") for name in ("show", "trigger", "pause")}
    assert len(said) == 1, said
    (message,) = said
    assert message.startswith("triggerer: there is no DAG 'nope'\n  hint: triggerer dags list ")


def test_the_hint_for_what_cannot_be_emitted_knows_of_no_filter(migrated: Shell) -> None:
    said = migrated.refused("assets", "emit", "x-orders", "--create", "--extra", r'{"a": "\u0000"}')
    assert "NUL character" in said
    assert said.endswith("hint: remove the NUL character\n")


def test_lists_without_rows_are_empty_arrays(migrated: Shell) -> None:
    for group in ("dags", "runs", "watchers", "assets"):
        assert migrated.json(group, "list") == []


def test_the_first_dag_of_the_readme_passes_check(shell: Shell) -> None:
    readme = Path(__file__).parents[3] / "README.md"
    source = readme.read_text().split("```python\n")[1].split("```")[0]
    assert len(source.splitlines()) <= 25
    (shell.folder / "dags").mkdir()
    (shell.folder / "dags" / "orders.py").write_text(source)
    with shell.config.open("a") as config:
        config.write('[connections.kafka]\nbootstrap_servers = "127.0.0.1:9"\n')
    found = shell.json("check", "--offline")
    (promised,) = found.pop("watchers")
    assert promised["promises"] == "effectively_once"
    assert found == {
        "files": ["orders.py"],
        "dags": ["collect_orders"],
        "errors": [],
        "warnings": [],
    }


def test_check_names_file_line_and_reason_and_ends_with_1(shell: Shell) -> None:
    (shell.folder / "dags").mkdir()
    (shell.folder / "dags" / "syntax.py").write_text("x = 1\ndef broken(:\n")
    (shell.folder / "dags" / "uri.py").write_text(
        "from triggerer import Asset\n\n\nasset = Asset('postgres://only-a-host')\n"
    )
    done = shell.run("check", "--json")
    assert done.returncode == 1
    errors = {error["file"]: error for error in json.loads(done.stdout)["errors"]}
    assert errors["syntax.py"]["line"] == 2
    assert errors["uri.py"]["line"] == 4
    assert "postgres://" in errors["uri.py"]["reason"]
    people = shell.run("check")
    assert people.returncode == 1
    assert "error: syntax.py:2: " in people.stderr


@pytest.mark.parametrize("command", ["check", "standalone"])
def test_a_dags_folder_that_is_not_there_is_refused(shell: Shell, command: str) -> None:
    said = shell.refused(command, "--dags-folder", "nowhere")
    assert f"there is no DAGs folder {shell.folder}/nowhere" in said
    assert "name it with --dags-folder" in said


def test_a_folder_named_like_a_package_of_ours_is_not_taken_for_it(shell: Shell) -> None:
    """The working directory has a folder `watchers`, like our package. Imports must still find our package."""
    shell.config.write_text('[core]\nhome = "."\ndags_folder = "dags"\n')
    (shell.folder / "watchers").mkdir()
    (shell.folder / "watchers" / "__init__.py").write_text("raise RuntimeError('not ours')")
    (shell.folder / "dags").mkdir()
    (shell.folder / "dags" / "inbox.py").write_text(
        "from triggerer import DAG, Asset, AssetWatcher\n"
        "from watchers.directory import DirectoryFileDeleteTrigger\n"
        "watcher = AssetWatcher('inbox', DirectoryFileDeleteTrigger(directory='/tmp', filename='x'))\n"
        "with DAG('d', schedule=Asset('inbox', watchers=[watcher])):\n    pass\n"
    )
    checked = shell.run("check")
    assert checked.returncode == 0, checked.stderr


_TRIED = """
from triggerer import DAG, Asset, SkipTask, task

source, made = Asset("x-source"), Asset("x-made")

with DAG("tried", schedule=source, params={"a": 1}):

    @task(outlets=made)
    def works(triggering_asset_events, outlet_events, params, logical_date):
        extras = [event.extra for event in triggering_asset_events[source]]
        print("events", extras, params, logical_date)
        outlet_events[made].extra = {"n": len(extras)}

    @task
    def skips():
        raise SkipTask("nothing new")

    works() >> skips()

with DAG("fails"):

    @task
    def fails():
        raise ValueError("on purpose")

    fails()
"""


def test_a_dag_is_tried_in_the_foreground_and_nothing_of_it_is_kept(shell: Shell) -> None:
    (shell.folder / "dags").mkdir()
    (shell.folder / "dags" / "one.py").write_text(_TRIED)
    given = ["--event", 'x-source={"n": 7}', "--event", "x-source", "--logical-date", "2026-01-02"]
    result = shell.json("dags", "test", "tried", *given, "--params", '{"b": 2}')
    assert (result["state"], result["error"], len(result["asset_event_ids"])) == (
        "success",
        None,
        2,
    )
    assert {task["task_id"]: (task["state"], task["error"]) for task in result["tasks"]} == {
        "works": ("success", None),
        "skips": ("skipped", "nothing new"),
    }
    (emitted,) = result["emitted"]
    assert (emitted["asset_name"], emitted["extra"]) == ("x-made", {"n": 2})
    assert "events [{'n': 7}, {}] {'a': 1, 'b': 2} 2026-01-02 00:00:00+00:00" in result["log"]

    failed = shell.run("dags", "test", "fails")
    assert failed.returncode == 1
    assert "ValueError: on purpose" in failed.stdout
    assert failed.stdout.endswith("fails: failed\n")
    assert "no DAG 'nobody'" in shell.refused("dags", "test", "nobody")
    assert sorted(path.name for path in shell.folder.iterdir()) == ["dags", "triggerer.toml"]


_ASKING_FOR_CONNECTIONS = """
from triggerer import DAG, Asset, AssetWatcher, task
from triggerer.abc import get_connection
from watchers.sqs import SqsEventTrigger

url = "https://sqs.eu-central-1.amazonaws.com/123456789012/orders"
orders = Asset("x-orders", name="orders", watchers=[AssetWatcher("w", SqsEventTrigger(url))])

with DAG("asking", schedule=orders):

    @task
    def works():
        print("region", get_connection("sqs")["region"])

    works()
"""


def test_to_try_a_dag_takes_a_place_for_temporary_files(shell: Shell) -> None:
    # Simulate a system on which no folder for temporary files is writable.
    nowhere = "import sys, tempfile; tempfile._candidate_tempdir_list = lambda: ['/proc']"
    script = f"{nowhere}; sys.argv = ['triggerer', 'dags', 'test', 'x', '--dags-folder', '.']"
    done = subprocess.run(
        [sys.executable, "-c", f"{script}; from triggerer.cli.main import main; main()"],
        cwd=shell.folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "there is no folder for temporary files" in done.stderr
    assert "set TMPDIR" in done.stderr
    assert "Traceback" not in done.stderr


def test_dag_files_and_tasks_see_the_connections_of_the_file_that_was_named(
    migrated: Shell,
) -> None:
    (migrated.folder / "dags").mkdir()
    (migrated.folder / "dags" / "one.py").write_text(_ASKING_FOR_CONNECTIONS)
    named = migrated.folder / "other.toml"
    named.write_text('[core]\nhome = "."\n[connections.sqs]\nregion = "eu-central-1"\n')
    refused = migrated.run("check", "--offline")
    assert refused.returncode == 1
    assert "watcher 'w' of asset 'orders': there is no connection 'sqs' (add" in refused.stderr
    migrated.ok("check", "--offline", "--config", "other.toml")
    migrated.ok("plan", "--dags-folder", "dags", "--config", "other.toml")
    assert "region eu-central-1" in migrated.ok("dags", "test", "asking", "--config", "other.toml")


_TRIED_FOR_A_KEY = """
from triggerer import DAG, Asset, task
from triggerer.timetables import PartitionedAssetTimetable

source = Asset("x-source")

with DAG("keyed", schedule=PartitionedAssetTimetable(assets=source)):

    @task
    def works(dag_run, triggering_asset_events):
        print("key", dag_run.partition_key, [one.partition_key for one in triggering_asset_events[source]])

    works()
"""


def test_a_dag_is_tried_for_a_partition_key(shell: Shell) -> None:
    (shell.folder / "dags").mkdir()
    (shell.folder / "dags" / "one.py").write_text(_TRIED_FOR_A_KEY)
    given = ["--event", "x-source", "--partition-key", "2026-03-10"]
    result = shell.json("dags", "test", "keyed", *given)
    assert (result["state"], result["partition_key"]) == ("success", "2026-03-10")
    assert "key 2026-03-10 ['2026-03-10']" in result["log"]


def test_how_much_waits_at_the_sources_is_told_where_it_is_asked_for(
    migrated: Shell, elasticmq: ElasticMqServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"lag-{uuid.uuid4().hex[:10]}"
    elasticmq.send(elasticmq.create_queue(name), ["1", "2", "3"])
    (away,) = free_ports(1)
    connection = "\n".join(f'{key} = "{value}"' for key, value in elasticmq.connection.items())
    migrated.config.write_text(
        f'[core]\nhome = "."\n[connections.sqs]\n{connection}\n'
        f'[connections.kafka]\nbootstrap_servers = "127.0.0.1:{away}"\n'
    )
    monkeypatch.chdir(migrated.folder)
    triggers = [SqsEventTrigger(name), PubSubEventTrigger("flights"), KafkaEventTrigger("orders")]

    async def seed(database: Database) -> None:
        for number, trigger in enumerate(triggers, 1):
            classpath, kwargs = trigger.serialize()
            await add_asset(database, number, f"asset{number}")
            await add_stream(database, Fence(f"s{number}", "me", 1))
            async with database.transaction() as session:
                session.add(
                    Trigger(id=number, digest=f"t{number}", classpath=classpath, kwargs=kwargs,
                            stream_digest=f"s{number}")
                )  # fmt: skip
                await session.flush()
                session.add(
                    Watcher(
                        asset_id=number, name="w", trigger_id=number, path="f.py", state="waiting",
                        updated_at=datetime.now(UTC),
                    )
                )  # fmt: skip

    def measured(*arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command again if SQS took longer than the command waits. Then the machine was busy."""
        for _ in range(10):
            done = migrated.run("watchers", *arguments, "--lag")
            if "did not answer within" not in done.stdout + done.stderr:
                break
        return done

    with_database(migrated.config, seed)
    found = {one["asset_name"]: one for one in json_of(measured("list", "--json"))}
    assert found["asset1"]["lag"] == 3
    assert found["asset1"]["lag_by_part"] == {"waiting": 3, "in flight": 0, "delayed": 0}
    assert (found["asset2"]["lag"], found["asset3"]["lag"]) == (None, None)
    assert "Cloud Monitoring" in found["asset2"]["lag_note"]
    assert f"127.0.0.1:{away}" in found["asset3"]["lag_note"]
    listed = measured("list")
    assert "lag" in listed.stdout.splitlines()[0].split()
    assert listed.stdout.count("unknown") == 2
    assert "Cloud Monitoring" in listed.stderr
    shown = output_of(measured("show", "asset1/w"))
    assert migrated.json("watchers", "show", "asset1", "w")["asset_name"] == "asset1"
    assert "lag" in shown
    assert "3 (approximate)" in shown
    # Without `--lag`, no broker is asked.
    assert "lag" not in migrated.json("watchers", "list")[0]
