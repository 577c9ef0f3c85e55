"""`triggerer tokens`, from the command line to the rows."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from triggerer.cli.app import app
from triggerer.config import load_settings
from triggerer.errors import ConfigurationError
from triggerer.service.api_part import prepare_access
from triggerer.store.access.sessions import use_login
from triggerer.store.access.tokens import count_tokens, find_token
from triggerer.store.audit.listing import list_audit
from triggerer.store.database.opening import open_database


@pytest.fixture
def command(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TRIGGERER__DATABASE__URL", sqlite_url)
    monkeypatch.setenv("TRIGGERER__CORE__HOME", str(tmp_path))

    def run(*words: str, code: int = 0) -> Any:
        done = CliRunner().invoke(app, ["tokens", *words, "--json"])
        assert done.exit_code == code, done.output
        return json.loads(done.stdout) if code == 0 else done

    return run


async def role_of(url: str, token: str) -> str | None:
    async with open_database(url) as database, database.reading() as session:
        found = await find_token(session, token)
    return None if found is None else found.role


def test_a_token_counts_until_it_is_revoked(command: Any, sqlite_url: str) -> None:
    import anyio

    made = command("create", "--role", "operator", "--name", "ci")
    assert (made["role"], made["name"]) == ("operator", "ci")
    assert anyio.run(role_of, sqlite_url, made["token"]) == "operator"
    assert [one["id"] for one in command("list")] == [made["id"]]
    assert command("revoke", made["id"])["revoked_at"] is not None
    assert anyio.run(role_of, sqlite_url, made["token"]) is None
    assert "token" not in command("list")[0]


def test_a_role_that_there_is_not_is_wrong_use_and_an_unknown_id_is_refused(command: Any) -> None:
    command("create", "--role", "king", code=2)
    assert command("revoke", "nobody", code=1)


async def test_a_link_is_for_one_use(sqlite_url: str) -> None:
    from triggerer.store.access.sessions import create_login

    async with open_database(sqlite_url) as database:
        async with database.transaction() as session:
            code = await create_login(session, name="me", role="admin")
        async with database.transaction() as session:
            assert await use_login(session, code) == ("me", "admin")
        async with database.transaction() as session:
            assert await use_login(session, code) is None


async def test_the_first_start_writes_a_token_that_only_this_user_reads(
    sqlite_url: str, tmp_path: Path
) -> None:
    settings = load_settings(environ={"TRIGGERER__CORE__HOME": str(tmp_path)})
    async with open_database(sqlite_url) as database:
        await prepare_access(settings, database, "http://127.0.0.1:1")
        file = tmp_path / "api-token"
        first = file.read_text()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        async with database.reading() as session:
            known = await find_token(session, first.strip())
        assert known is not None
        assert known.role == "admin"
        await prepare_access(settings, database, "http://127.0.0.1:1")
        assert file.read_text() == first
        async with database.reading() as session:
            (made,) = await list_audit(session)
    assert (made.action, made.actor, made.via) == ("token.create", "first start", "service")
    assert made.after == {"name": "first start", "role": "admin", "expires_at": None}


async def test_a_token_that_cannot_be_written_is_not_stored(
    sqlite_url: str, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    settings = load_settings(environ={"TRIGGERER__CORE__HOME": str(home)})
    async with open_database(sqlite_url) as database:
        with pytest.raises(ConfigurationError, match=r"cannot be written to .*: No such file"):
            await prepare_access(settings, database, "http://127.0.0.1:1")
        async with database.reading() as session:
            assert await count_tokens(session) == 0
        home.mkdir()
        await prepare_access(settings, database, "http://127.0.0.1:1")
    assert (home / "api-token").exists()
