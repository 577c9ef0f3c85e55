"""A DAG file is stored while events create what it declares."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from sqlalchemy import select, text

from triggerer.dag_processing import DagProcessor
from triggerer.store.engine.database import Database
from triggerer.store.models import Asset, AssetAlias, Dag
from triggerer.store.queries.execution.aliases import ensure_aliases
from triggerer.store.recording.undeclared import ensure_asset

FILE = """\
from triggerer import DAG, Asset, AssetAlias

with DAG("report", schedule=Asset("x-flights")):
    pass
with DAG("by_alias", schedule=AssetAlias("landings")):
    pass
"""


async def _somebody_waits(database: Database) -> None:
    """Return once a transaction waits for another one; asked of the server, which tells nobody of its own accord."""
    waiting = text("SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted")
    with anyio.fail_after(20):
        while True:
            async with database.reading() as session:
                if await session.scalar(waiting):
                    return
            await anyio.sleep(0.02)


@pytest.mark.parametrize("made", ["asset", "alias"])
async def test_a_file_is_in_force_though_an_event_makes_its_asset_or_alias_meanwhile(
    postgres: Database, tmp_path: Path, made: str
) -> None:
    (tmp_path / "a.py").write_text(FILE)
    processor = DagProcessor(
        postgres, dags_folder=tmp_path, min_file_process_interval=timedelta(hours=1)
    )
    async with anyio.create_task_group() as tasks:
        # The barrier: the event's transaction is open until the processor's waits for it.
        async with postgres.transaction() as session:
            if made == "asset":
                await ensure_asset(session, uri="x-flights")
            else:
                await ensure_aliases(session, ["landings"])
            tasks.start_soon(processor.run)
            await _somebody_waits(postgres)
        with anyio.fail_after(20):
            while True:
                async with postgres.reading() as session:
                    dags = set(await session.scalars(select(Dag.dag_id)))
                if dags:
                    break
                await anyio.sleep(0.02)
        tasks.cancel_scope.cancel()
    async with postgres.reading() as session:
        names = await session.scalars(select(Asset.name).where(Asset.declared_in == "a.py"))
        assert list(names) == ["x-flights"]
        assert list(await session.scalars(select(AssetAlias.name))) == ["landings"]
    assert dags == {"report", "by_alias"}
