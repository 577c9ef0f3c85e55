"""A house: a store, a folder of DAG files, and executors with real worker processes."""

import textwrap
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from sqlalchemy import insert, select, update

from triggerer.domain.run_logs import log_path
from triggerer.domain.runs import RunState
from triggerer.executor import Executor, ExecutorSettings
from triggerer.store.database.opening import open_database
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups.signals import Signal, announce
from triggerer.store.runs.transitions import request_cancel
from triggerer.store.schema.models import (
    Asset,
    AssetEvent,
    Dag,
    DagRun,
    DagScheduleAsset,
    Instance,
    QueuedAssetEvent,
    TaskRun,
)

HEADER = """
import os, signal, sys, time
from datetime import timedelta
from pathlib import Path
from triggerer.domain.assets import Asset, AssetAlias, Metadata
from triggerer.domain.dags import DAG
from triggerer.domain.tasks import task
"""


@dataclass
class House:
    """The environment of executor tests: a store, a DAGs folder, and executors with real workers."""

    database: Database
    folder: Path
    count: int = 0
    dags: dict[str, str] = field(default_factory=dict)

    @property
    def dags_folder(self) -> Path:
        return self.folder / "dags"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    async def add_dag(
        self,
        dag_id: str,
        source: str,
        *,
        needs_spark: bool = False,
        tasks: Sequence[tuple[str, Sequence[str]]] = (("t", ()),),
        **columns: Any,
    ) -> None:
        """Write a DAG file, and store the DAG as the parser would. `tasks` pairs each task with its upstream tasks."""
        path = self.dags_folder / f"{dag_id}_file.py"
        path.write_text(HEADER + textwrap.dedent(source))
        row = {
            "dag_id": dag_id,
            "path": path.name,
            "tasks": [
                {"task_id": one, "upstream": list(upstream), "needs_spark": needs_spark}
                for one, upstream in tasks
            ],
            "updated_at": datetime.now(UTC),
            **columns,
        }
        async with self.database.transaction() as session:
            await session.execute(insert(Dag), [row])
            announce(session, Signal.DAGS_CHANGED, dag_id)

    async def point_at(self, dag_id: str, path: str) -> None:
        """Change the path in the DAG's row, so that another file defines the DAG."""
        async with self.database.transaction() as session:
            await session.execute(update(Dag).where(Dag.dag_id == dag_id).values(path=path))

    async def add_instance(self, name: str, *, alive: bool = True) -> None:
        now = datetime.now(UTC)
        expires_at = now + timedelta(hours=1 if alive else -1)
        row = {"id": name, "kind": "executor", "started_at": now, "expires_at": expires_at}
        async with self.database.transaction() as session:
            await session.execute(insert(Instance), [row])

    async def queue(self, dag_id: str, count: int = 1, **values: Any) -> list[int]:
        """Queue runs, and return their primary keys."""
        now = datetime.now(UTC)
        rows = []
        for _ in range(count):
            self.count += 1
            row = {"dag_id": dag_id, "run_id": f"manual__{self.count}", "run_type": "manual"}
            row |= {"state": "queued", "run_after": now, "queued_at": now, **values}
            rows.append(row)
        async with self.database.transaction() as session:
            pks = list(await session.scalars(insert(DagRun).returning(DagRun.id), rows))
            announce(session, Signal.RUNS_QUEUED, dag_id)
        return sorted(pks)

    async def run(self, pk: int) -> DagRun:
        async with self.database.reading() as session:
            return (await session.execute(select(DagRun).where(DagRun.id == pk))).scalar_one()

    async def tasks(self, pk: int) -> dict[str, TaskRun]:
        async with self.database.reading() as session:
            rows = await session.scalars(select(TaskRun).where(TaskRun.run_pk == pk))
            return {row.task_id: row for row in rows}

    async def events(self, uri: str) -> list[AssetEvent]:
        statement = select(AssetEvent).join(Asset, Asset.id == AssetEvent.asset_id)
        async with self.database.reading() as session:
            rows = await session.scalars(statement.where(Asset.uri == uri).order_by(AssetEvent.id))
            return list(rows)

    async def change_run(self, pk: int, **values: Any) -> None:
        async with self.database.transaction() as session:
            await session.execute(update(DagRun).where(DagRun.id == pk).values(**values))

    async def cancel(self, pk: int) -> None:
        """Request a cancellation, as `runs cancel` does."""
        async with self.database.transaction() as session:
            state = await request_cancel(session, pk)
            if state is RunState.RUNNING:
                announce(session, Signal.RUNS_CANCELLED, str(pk))

    async def trigger_with(
        self, pk: int, dag_id: str, uri: str, extras: list[dict[str, Any]]
    ) -> None:
        """Create an event with each `extra`, and queue the events for the run, as the scheduler does."""
        now = datetime.now(UTC)
        async with self.database.transaction() as session:
            asset = {"name": uri, "uri": uri, "extra": {}, "created_at": now}
            (asset_id,) = await session.scalars(insert(Asset).returning(Asset.id), [asset])
            link = {"dag_id": dag_id, "asset_id": asset_id}
            await session.execute(insert(DagScheduleAsset), [link])
            rows = [
                {"asset_id": asset_id, "extra": extra, "timestamp": now, "idempotency_key": str(i)}
                for i, extra in enumerate(extras)
            ]
            ids = await session.scalars(insert(AssetEvent).returning(AssetEvent.id), rows)
            queued = [
                {"dag_id": dag_id, "asset_event_id": id_, "asset_id": asset_id, "run_pk": pk}
                for id_ in ids
            ]
            await session.execute(insert(QueuedAssetEvent), queued)

    async def ended(self, *pks: int, timeout: float = 60) -> list[DagRun]:
        """Wait until these runs have ended."""
        final = {"success", "failed", "cancelled"}
        return [await self.until(pk, lambda run: run.state in final, timeout) for pk in pks]

    async def until(self, pk: int, holds: Callable[[DagRun], bool], timeout: float = 60) -> DagRun:
        with anyio.fail_after(timeout):
            # Poll the store, so that the test does not depend on wake-ups.
            while True:
                run = await self.run(pk)
                if holds(run):
                    return run
                await anyio.sleep(0.02)

    def log_path(self, run: DagRun) -> Path:
        assert run.log_home is not None
        return Path(log_path(run.log_home, run.dag_id, run.run_id))

    def log(self, run: DagRun) -> str:
        return self.log_path(run).read_text()

    def said_of_the_end(self, run: DagRun) -> str:
        """Return the log's last line, without its time."""
        return self.log(run).splitlines()[-1].split(" ", 2)[2]

    def executor(self, name: str = "one", **options: Any) -> AbstractAsyncContextManager[Executor]:
        """Run an executor with this name. Leaving the block shuts it down."""
        return _running(self, name, options)


@asynccontextmanager
async def _running(house: House, name: str, options: dict[str, Any]) -> AsyncIterator[Executor]:
    options = {"shutdown_grace": timedelta(0), **options}
    shipper = options.pop("log_shipper", None)
    executor = Executor(
        house.database,
        house.database.wakeups,
        instance_id=name,
        settings=ExecutorSettings(home=house.home, dags_folder=house.dags_folder, **options),
        log_shipper=shipper,
    )
    async with anyio.create_task_group() as tasks:
        await tasks.start(executor.run)
        try:
            yield executor
        finally:
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def open_house(url: str, folder: Path, **options: Any) -> AsyncIterator[House]:
    """Open a house. The options go to `open_database`."""
    (folder / "dags").mkdir()
    async with open_database(url, **options) as database:
        yield House(database, folder)


@pytest.fixture
async def house(sqlite_url: str, tmp_path: Path) -> AsyncIterator[House]:
    """A house on SQLite, for tests that do not depend on the store."""
    async with open_house(sqlite_url, tmp_path) as house:
        yield house


@pytest.fixture
async def any_house(store_url: str, tmp_path: Path) -> AsyncIterator[House]:
    """A house on each database in turn."""
    async with open_house(store_url, tmp_path) as house:
        yield house


@pytest.fixture
def worker_setup(tmp_path: Path) -> dict[str, Any]:
    """The set-up of a worker that finds no DAG files and uses no Spark."""
    return {
        "home": str(tmp_path),
        "dags_folder": str(tmp_path),
        "file_patience_s": 0.0,
        "holds_broken": False,
        "log_max_bytes": 1 << 20,
        "spark": {},
    }
