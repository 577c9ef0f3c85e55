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


async def start_and_stop(spools: Spools) -> None:
    with anyio.move_on_after(0.2):
        await spools.run()


async def test_the_first_two_runs_may_spool_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def lock_slowly(descriptor: int, operation: int) -> None:
        time.sleep(0.1)  # the second run begins before the first has its folder
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


async def test_an_executor_that_starts_leaves_a_folder_that_another_one_is_making(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, has_started = fcntl.flock, False

    def lock_after_a_start(descriptor: int, operation: int) -> None:
        nonlocal has_started
        if not has_started:
            has_started = True
            anyio.from_thread.run(start_and_stop, spools_in(tmp_path))
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", lock_after_a_start)
    spools = spools_in(tmp_path)
    folders = [await spool(spools, 1)]
    await start_and_stop(spools_in(tmp_path))
    folders.append(await spool(spools, 2))
    assert all(folder.is_dir() for folder in folders)
    await start_and_stop(spools)
    assert list((tmp_path / "spool").iterdir()) == []
