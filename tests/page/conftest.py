"""Fixtures for the tests of the web page: a browser, a database, and the sources of the page with their packages."""

from __future__ import annotations

import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.page.browsing import is_there, open_browser
from tests.services.availability import skip_or_fail
from tests.services.databases.postgres import PostgresServer
from tests.services.databases.stores import create_migrated_database

WEB = Path(__file__).parents[2] / "triggerer" / "api" / "web"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not is_there():
        skip_or_fail("chromium is not installed: apt-get install chromium")
    with open_browser() as opened:
        yield opened


@pytest.fixture(
    scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)]
)
def large_database(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """The URL of an empty PostgreSQL store for a copy of a large SQLite store. None: use the SQLite store itself."""
    if request.param == "sqlite":
        yield None
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    name = f"large_{uuid.uuid4().hex[:12]}"
    yield create_migrated_database(server, name)
    server.drop_database(name)


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the page's sources, and with the npm packages that the lock file names."""
    if shutil.which("npm") is None:
        pytest.skip("node is not installed; only those who change the page need it")
    copy = tmp_path_factory.mktemp("page") / "api" / "web"
    shutil.copytree(WEB, copy, ignore=shutil.ignore_patterns("node_modules"))
    command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
    done = subprocess.run(
        command, cwd=copy, check=False, capture_output=True, text=True, timeout=240
    )
    if done.returncode != 0:
        pytest.skip(f"npm cannot install the page's packages here: {done.stderr[-300:]}")
    return copy
