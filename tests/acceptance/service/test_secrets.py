"""No secret in the settings appears in the output, in the list of processes, or in a variable of a task."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.acceptance.commands import run_command
from tests.acceptance.instance import Instance, wait_until

SECRET = "hunter-22-hunter"
DAG = """
import json, os
from pathlib import Path
from triggerer import DAG, Asset, AssetWatcher, BaseEventTrigger, task
from triggerer.abc import get_connection

NOTES = Path({notes!r})
(NOTES / "parser").write_text(json.dumps(dict(os.environ)))

class Ticks(BaseEventTrigger):
    def __init__(self, url, api_token):
        self.url, self.api_token = url, api_token

    def serialize(self):
        return f"{{type(self).__module__}}.Ticks", {{"url": self.url, "api_token": self.api_token}}

    async def run(self):
        import anyio

        (NOTES / "trigger").write_text(json.dumps(dict(os.environ)))
        (NOTES / "connection").write_text(json.dumps(dict(get_connection("mine"))))
        if False:
            yield
        await anyio.sleep_forever()

ticks = Asset("x-ticks", name="ticks", watchers=[
    AssetWatcher("clock", Ticks("https://me:{secret}@127.0.0.1/?token={secret}", "{secret}"))])

with DAG("notes", schedule=ticks):
    @task
    def note():
        (NOTES / "worker").write_text(json.dumps(dict(os.environ)))
        (NOTES / "from_task").write_text(json.dumps(dict(get_connection("mine"))))
    note()
"""


def _command(config: Path, environ: dict[str, str], *arguments: str) -> str:
    done = run_command(*arguments, "--config", str(config), environment=environ)
    return done.stdout + done.stderr


@pytest.mark.services
@pytest.mark.parametrize("by", [pytest.param("variable", marks=pytest.mark.soak), "reference"])
def test_no_secret_is_in_output_or_in_the_environment_of_users_code(
    tmp_path: Path,
    empty_postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
    by: str,
) -> None:
    notes, dags = tmp_path / "notes", tmp_path / "dags"
    notes.mkdir()
    dags.mkdir()
    (dags / "ticks.py").write_text(DAG.format(notes=str(notes), secret=SECRET))
    # The server trusts everybody, so any password will do.
    url = f"{empty_postgres_url.replace('+asyncpg', '')}?password={SECRET}"
    service = Instance(
        tmp_path / "home", dags_folder=dags, database_url="env:SERVICE_URL", bootstrap="127.0.0.1:1"
    )
    text = service.config.read_text() + (
        f'[connections.mine]\npassword = "env:MINE"\nhost = "there"\n'
        f'[triggerer.isolation]\n"ticks/clock" = "process"\n'
        f'[spark.conf]\n"spark.hadoop.fs.azure.account.key.store.dfs.core.windows.net" = "{SECRET}"\n'
    )
    if by == "variable":
        text = text.replace('[database]\nurl = "env:SERVICE_URL"\n', "")
        monkeypatch.setenv("TRIGGERER__DATABASE__URL", url)
    else:
        monkeypatch.setenv("SERVICE_URL", url)
    service.config.write_text(text)
    monkeypatch.setenv("MINE", SECRET)
    monkeypatch.setenv("TRIGGERER__CONNECTIONS__OTHER__HOST", "elsewhere")
    environ = dict(os.environ)
    service.start()
    try:
        wait_until((notes / "connection").exists, within_s=60, what="the trigger runs", of=service)
        _command(service.config, environ, "dags", "trigger", "notes")
        wait_until((notes / "from_task").exists, within_s=60, what="the run", of=service)
        shown = [
            _command(service.config, environ, *arguments)
            for arguments in (
                ("config", "show"),
                ("config", "show", "--json"),
                ("watchers", "list", "--json"),
                ("watchers", "show", "ticks", "clock"),
                ("watchers", "show", "ticks", "clock", "--json"),
                ("runs", "list", "--json"),
            )
        ]
        processes = [psutil.Process(service.pid), *service.children()]
        lines = [" ".join(process.cmdline()) for process in processes]
    finally:
        service.stop()
    assert "api_token" in shown[3]
    log = service.log.read_text()
    assert '"started"' in log
    for text in (*shown, *lines, log):
        assert SECRET not in text, text
    for name in ("parser", "trigger", "worker"):
        seen = json.loads((notes / name).read_text())
        assert not any("hunter" in value for key, value in seen.items() if key != "MINE"), name
        assert seen["TRIGGERER__CONNECTIONS__OTHER__HOST"] == "elsewhere"
    # Users' code receives a connection that it asks for by name.
    for name in ("connection", "from_task"):
        assert json.loads((notes / name).read_text()) == {"password": SECRET, "host": "there"}


TELLING = """
from triggerer import DAG, Asset, AssetWatcher, BaseEventTrigger, task
from triggerer.abc import get_connection

class Telling(BaseEventTrigger):
    def __init__(self, name):
        self.name = name

    def serialize(self):
        return f"{__name__}.Telling", {"name": self.name}

    async def run(self):
        raise RuntimeError("no login with " + get_connection("mine")["password"])
        yield

def watched(name):
    return Asset(f"x-{name}", name=name, watchers=[AssetWatcher("w", Telling(name))])

with DAG("telling", schedule=[watched("here"), watched("isolated")]):
    @task
    def tell():
        raise RuntimeError("no login with " + get_connection("mine")["password"])
    tell()
"""
BROKEN = """
from triggerer.abc import get_connection
raise RuntimeError("no login with " + get_connection("mine")["password"])
"""


def test_an_error_that_repeats_a_secret_is_stored_logged_and_shown_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dags, home = tmp_path / "dags", tmp_path / "home"
    dags.mkdir()
    (dags / "telling.py").write_text(TELLING)
    (dags / "broken.py").write_text(BROKEN)
    monkeypatch.setenv("MINE", SECRET)
    service = Instance(
        home,
        dags_folder=dags,
        database_url=f"sqlite:///{home / 'triggerer.db'}",
        bootstrap="127.0.0.1:1",
        settings='[connections.mine]\npassword = "env:MINE"\n'
        '[triggerer.isolation]\n"isolated/w" = "process"\n',
    )
    environ = dict(os.environ)

    def rows(*arguments: str) -> list[dict[str, Any]]:
        done = run_command(
            *arguments, "--json", "--config", str(service.config), environment=environ
        )
        found: list[dict[str, Any]] = json.loads(done.stdout) if done.returncode == 0 else []
        return found

    service.start()
    try:
        wait_until(
            lambda: len(rows("watchers", "list", "--state", "failing")) == 2,
            within_s=60,
            what="both watchers fail",
            of=service,
        )
        _command(service.config, environ, "dags", "trigger", "telling")
        wait_until(
            lambda: len(rows("runs", "list", "--state", "failed")) == 1,
            within_s=60,
            what="the run fails",
            of=service,
        )
        (run,) = rows("runs", "list")
        shown: list[str] = []

        def tells_it(*arguments: str) -> bool:
            shown.append(_command(service.config, environ, *arguments))
            return "no login with ***" in shown[-1]

        for arguments in (
            ("watchers", "list"),
            ("watchers", "show", "here", "w"),
            ("watchers", "show", "isolated", "w", "--json"),
            ("dags", "list"),
            ("runs", "show", "telling", run["run_id"]),
            ("runs", "logs", "telling", run["run_id"]),
            ("check", "--offline"),
        ):
            # A restarted watcher is `running`, without an error, until it fails again.
            wait_until(
                partial(tells_it, *arguments),
                within_s=60,
                what=f"{arguments} tells the error",
                of=service,
            )
    finally:
        service.stop()
    for path in home.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path
    assert not any(SECRET in one for one in shown)


@pytest.mark.services
def test_an_error_of_the_database_does_not_repeat_the_password(
    empty_postgres_url: str, tmp_path: Path
) -> None:
    url = empty_postgres_url.replace("+asyncpg", "").replace("postgres@", f"nobody:{SECRET}@")
    config = tmp_path / "triggerer.toml"
    config.write_text(
        f'[database]\nurl = "{url}?sslpassword={SECRET}&bogus=1"\nstart_timeout = 0\n'
    )
    environ = dict(os.environ)
    for arguments in (("dags", "list"), ("standalone",), ("db", "check")):
        said = _command(config, environ, *arguments)
        assert "triggerer: " in said
        assert SECRET not in said
