"""The store is unavailable while runs are executed; no result is lost."""

import sqlite3
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.to_thread import run_sync
from structlog.testing import capture_logs

from tests.executor.conftest import House, open_house
from tests.services.databases.postgres import PostgresServer
from triggerer.executor.slots.worker_process import RunHandle, WorkerProcess

WAITS = """
    with DAG("waits"):
        @task(outlets=[Asset("x-waits")])
        def waits(params):
            Path(params["marker"]).touch()
            while not Path(params["go"]).exists():
                time.sleep(0.02)
            Path(params["done"]).touch()
        waits()
    """


async def _until_there(path: Path) -> None:
    with anyio.fail_after(60):
        while True:
            if path.exists():
                return
            await anyio.sleep(0.02)


def _params(folder: Path) -> dict[str, str]:
    return {name: str(folder / name) for name in ("marker", "go", "done")}


@pytest.mark.services
async def test_a_result_is_written_when_postgresql_is_back(
    postgres_url: str, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    async with open_house(postgres_url, tmp_path) as house:
        await house.add_dag("waits", WAITS)
        await house.add_instance("one")
        async with house.executor(sweep_every=timedelta(seconds=1)):
            (pk,) = await house.queue("waits", params=_params(tmp_path))
            await _until_there(tmp_path / "marker")
            await run_sync(postgres_server.stop)
            (tmp_path / "go").touch()
            await _until_there(tmp_path / "done")
            await run_sync(postgres_server.start)
            (run,) = await house.ended(pk)
            assert (run.state, run.attempt) == ("success", 1)
            assert len(await house.events("x-waits")) == 1
            # The executor continues to claim.
            (run,) = await house.ended(*await house.queue("waits", params=_params(tmp_path)))
            assert run.state == "success"


@pytest.fixture
async def impatient(sqlite_url: str, tmp_path: Path) -> AsyncIterator[House]:
    """A house whose SQLite reports a lock soon, so that code with retries must use them."""
    async with open_house(sqlite_url, tmp_path, busy_timeout=timedelta(seconds=0.05)) as house:
        yield house


def _lock(house: House) -> sqlite3.Connection:
    """Lock the database as another writing process would. Closing the connection releases the lock."""
    assert house.database.path is not None
    other = sqlite3.connect(house.database.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    return other


async def _until_said(logs: list[Any], event: str, times: int) -> None:
    with anyio.fail_after(60):
        while sum(log["event"] == event for log in logs) < times:  # noqa: ASYNC110 (a log sends no notice)
            await anyio.sleep(0.02)


async def test_a_result_is_written_when_another_writer_lets_go_of_sqlite(impatient: House) -> None:
    house = impatient
    await house.add_dag("waits", WAITS)
    params = _params(house.folder)
    async with house.executor():
        (pk,) = await house.queue("waits", params=params)
        await _until_there(Path(params["marker"]))
        with capture_logs() as logs:
            other = _lock(house)
            Path(params["go"]).touch()
            await _until_there(Path(params["done"]))
            await _until_said(logs, "results wait for the store", times=2)
        assert (await house.run(pk)).state == "running"
        other.close()
        (run,) = await house.ended(pk)
    assert (run.state, run.attempt) == ("success", 1)
    assert len(await house.events("x-waits")) == 1


async def test_a_run_that_is_tried_again_begins_when_sqlite_can_be_written_again(
    impatient: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = impatient
    await house.add_dag("waits", WAITS)
    params = _params(house.folder)
    Path(params["go"]).touch()
    locks = []
    take = WorkerProcess.take

    async def take_when_the_store_is_away(worker: WorkerProcess) -> RunHandle:
        process = await take(worker)
        locks.append(_lock(house))
        return process

    monkeypatch.setattr(WorkerProcess, "take", take_when_the_store_is_away)
    async with house.executor(workers=1):
        with capture_logs() as logs:
            (pk,) = await house.queue("waits", params=params, attempt=1)
            await _until_said(logs, "a run waits for the store to begin", times=2)
        run = await house.run(pk)
        assert (run.state, run.started_at) == ("running", None)
        # If the run began now and killed its service, nobody would know that it had begun.
        assert not Path(params["marker"]).exists()
        for lock in locks:
            lock.close()
        (run,) = await house.ended(pk)
    assert (run.state, run.attempt) == ("success", 2)
    assert run.started_at is not None
