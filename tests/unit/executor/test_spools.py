"""The folders for spooled events, without the process that writes the events."""

from __future__ import annotations

import fcntl
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from sqlalchemy import make_url

from tests.run_orders import order
from triggerer.executor.spooling import spools as module
from triggerer.executor.spooling.spools import Spools
from triggerer.store.database.transactions import Database

FIELDS = {"about": {"uri": "x"}, "last_id": 1, "as_text": False, "triggering": False}


@pytest.fixture(autouse=True)
def _no_child_process(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(asked: dict[str, Any]) -> dict[str, Any]:
        return asked

    monkeypatch.setattr(module, "_ask_child", answer)


def spools_in(home: Path) -> Spools:
    database = SimpleNamespace(url=make_url("sqlite:///none"))
    spools = Spools(cast("Database", database), home)
    spools._is_usable = True  # noqa: SLF001
    return spools


async def spool(spools: Spools, run_pk: int) -> Path:
    """Return the folder for the events of this run."""
    reply = await spools.write(order(run_pk), FIELDS)
    assert reply is not None
    return Path(reply["folder"])


async def test_the_first_two_runs_may_spool_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def lock_slowly(descriptor: int, operation: int) -> None:
        time.sleep(0.1)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", lock_slowly)
    spools = spools_in(tmp_path)
    folders = []

    async def spool_one(run_pk: int) -> None:
        folders.append(await spool(spools, run_pk))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(spool_one, 1)
        tasks.start_soon(spool_one, 2)
    assert len({folder.parent for folder in folders}) == 2
    assert all(folder.is_dir() for folder in folders)
