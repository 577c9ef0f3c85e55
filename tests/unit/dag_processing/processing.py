"""A DAG processor at work on a folder and a database, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
from sqlalchemy import select

from triggerer.dag_processing import DagProcessor
from triggerer.store.database.transactions import Database

DAG_FILE = """\
from triggerer.domain.assets import Asset, AssetWatcher
from triggerer.domain.dags import DAG
from triggerer.abc import BaseEventTrigger

class Mine(BaseEventTrigger):
    def __init__(self, n):
        self.n = n
    def serialize(self):
        return f"{type(self).__module__}.Mine", {"n": self.n}
    def shared_stream_key(self):
        return ("mine",)

a = Asset("a", watchers=[AssetWatcher("w", Mine(1))])
with DAG("d", schedule=a, description="one"):
    pass
"""


@asynccontextmanager
async def processing(
    database: Database, folder: Path, **settings: Any
) -> AsyncIterator[DagProcessor]:
    # Scan so rarely that only the operating system's reports of changes wake the processor during a test.
    settings.setdefault("min_file_process_interval", timedelta(hours=1))
    # A missing file counts as deleted at once, unless a test says otherwise.
    settings.setdefault("removal_grace", timedelta())
    processor = DagProcessor(database, dags_folder=folder, **settings)
    async with anyio.create_task_group() as tasks:
        await tasks.start(processor.run)
        yield processor
        tasks.cancel_scope.cancel()


async def every(database: Database, model: type[Any]) -> list[Any]:
    async with database.reading() as session:
        return list(await session.scalars(select(model)))


async def until(
    database: Database, model: type[Any], holds: Callable[[list[Any]], bool]
) -> list[Any]:
    """Poll until the condition holds. If it never does, the test runs into its deadline."""
    with anyio.fail_after(60):
        while not holds(rows := await every(database, model)):  # noqa: ASYNC110
            await anyio.sleep(0.02)
        return rows
