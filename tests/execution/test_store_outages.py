"""The store goes away while runs are executed; no result is lost."""

import sqlite3
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync

from tests.execution.conftest import House, open_house
from tests.services.postgres import PostgresServer
from triggerer.execution.process import WorkerProcess

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
    with anyio.fail_after(20):
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
            # And it goes on claiming.
            (run,) = await house.ended(*await house.queue("waits", params=_params(tmp_path)))
            assert run.state == "success"


async def test_a_result_is_written_when_another_writer_lets_go_of_sqlite(house: House) -> None:
    await house.add_dag("waits", WAITS)
    params = _params(house.folder)
    async with house.executor():
        (pk,) = await house.queue("waits", params=params)
        await _until_there(Path(params["marker"]))
        assert house.database.path is not None
        other = sqlite3.connect(house.database.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        Path(params["go"]).touch()
        await _until_there(Path(params["done"]))
        await anyio.sleep(1)
        assert (await house.run(pk)).state == "running"
        other.execute("ROLLBACK")
        other.close()
        (run,) = await house.ended(pk)
    assert (run.state, run.attempt) == ("success", 1)
    assert len(await house.events("x-waits")) == 1


async def test_a_run_that_is_tried_again_begins_when_sqlite_can_be_written_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.add_dag("waits", WAITS)
    params = _params(house.folder)
    Path(params["go"]).touch()
    assert house.database.path is not None
    other = sqlite3.connect(house.database.path, isolation_level=None)
    is_locked = anyio.Event()
    ready = WorkerProcess.ready

    async def ready_when_the_store_is_away(worker: WorkerProcess) -> None:
        await ready(worker)
        other.execute("BEGIN IMMEDIATE")
        is_locked.set()

    monkeypatch.setattr(WorkerProcess, "ready", ready_when_the_store_is_away)
    async with house.executor(workers=1):
        (pk,) = await house.queue("waits", params=params, attempt=1)
        await is_locked.wait()
        await anyio.sleep(1)
        run = await house.run(pk)
        assert (run.state, run.started_at) == ("running", None)
        # Were it executed now and killed its service, nobody would know that it had begun.
        assert not Path(params["marker"]).exists()
        other.execute("ROLLBACK")
        other.close()
        (run,) = await house.ended(pk)
    assert (run.state, run.attempt) == ("success", 2)
    assert run.started_at is not None
