"""A DAG file is stored while an event, or the owner of a stream, changes the same rows in another transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from sqlalchemy import select, text, update

from tests.store.dags.test_dag_sync import NOW, asset, file, rows, sync, watcher
from triggerer.dag_processing import DagProcessor
from triggerer.domain.events import Fence
from triggerer.domain.watchers.lane_positions import PositionChange
from triggerer.domain.watchers.parked import ParkedBounds, ParkedChange, Stored
from triggerer.hosting.ownership import Ownership
from triggerer.processes.own_lease import OwnLease
from triggerer.store.database.script import perform
from triggerer.store.database.transactions import Database
from triggerer.store.events.aliases import ensure_aliases
from triggerer.store.events.undeclared_assets import ensure_asset
from triggerer.store.schema.models import Asset, AssetAlias, Dag, Stream, Watcher, WatcherPosition
from triggerer.store.streams import leases, marks
from triggerer.store.watchers import hosting
from triggerer.store.watchers.parked import write_parked
from triggerer.store.watchers.parked_listing import list_parked
from triggerer.store.watchers.parked_usage import ParkedUsage
from triggerer.store.watchers.positions import write_positions

LATER = datetime(2100, 1, 1, tzinfo=UTC)
FILE = """\
from triggerer import DAG, Asset, AssetAlias

with DAG("report", schedule=Asset("x-flights")):
    pass
with DAG("by_alias", schedule=AssetAlias("landings")):
    pass
"""


async def _somebody_waits(database: Database, *, unless: anyio.Event | None = None) -> None:
    """Poll until a transaction waits for another one, or `unless` is set. PostgreSQL announces no waiting."""
    waiting = text("SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted")
    with anyio.fail_after(20):
        while unless is None or not unless.is_set():
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
        # The event's transaction stays open until the processor's transaction waits for it.
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


async def test_rows_that_an_owner_writes_while_a_watcher_moves_do_not_outlive_the_move(
    postgres: Database,
) -> None:
    """An earlier version moved the watcher without waiting for the old owner's open transaction.

    So the transaction's rows were overlooked, and the owner of the new stream received them.
    """
    owner = Fence("s", "me", 1)
    await sync(postgres, file(assets=(asset("x"),), watchers=(watcher("x"),)))
    async with postgres.transaction() as session:
        await session.execute(
            update(Stream).values(owner=owner.owner, epoch=owner.epoch, expires_at=LATER)
        )
    moved = file(assets=(asset("x"),), watchers=(watcher("x", args="2", stream="other"),))
    kept = ParkedChange(owner, 1, Stored("0", "key", b"bytes", NOW), lambda error: None)
    position = PositionChange(owner, 1, "0", ["log", 3], NOW, None, 0, lambda error: None)
    has_moved = anyio.Event()

    async def move() -> None:
        await sync(postgres, moved)
        has_moved.set()

    # The owner's transaction stays open until the file's transaction waits for it, or the watcher has moved.
    async with anyio.create_task_group() as tasks, postgres.transaction() as session:
        await perform(session, write_parked([kept], ParkedBounds(), ParkedUsage()))
        await perform(session, write_positions([position]))
        tasks.start_soon(move)
        await _somebody_waits(postgres, unless=has_moved)
    async with postgres.reading() as session:
        assert [one.state for one in await list_parked(session)] == ["set_aside"]
        assert list(await session.scalars(select(WatcherPosition))) == []


class _Between:
    """Performs the store's queries for `Ownership`. Once `then` is set, the next query is followed by `then`."""

    def __init__(self) -> None:
        self.then: Callable[[], Awaitable[None]] | None = None

    def __getattr__(self, name: str) -> Any:
        query = getattr(hosting if hasattr(hosting, name) else leases, name)

        async def run(*arguments: Any) -> Any:
            found = await query(*arguments)
            if self.then is not None:
                then, self.then = self.then, None
                await then()
            return found

        return run


async def test_a_file_that_changes_a_watcher_while_its_stream_is_given_up_does_not_deadlock(
    postgres: Database,
) -> None:
    """In an earlier version, the two transactions deadlocked. Nobody read the stream until its lease expired."""
    fence = Fence("s", "me", 1)
    await sync(postgres, file(assets=(asset("x"),), watchers=(watcher("x"),)))
    async with postgres.transaction() as session:
        await session.execute(
            update(Stream).values(owner=fence.owner, epoch=fence.epoch, expires_at=LATER)
        )
        await session.execute(update(Watcher).values(owner=fence.owner))
    between: Any = _Between()
    ownership = Ownership(
        postgres,
        fence.owner,
        lease=timedelta(seconds=15),
        own_lease=OwnLease.unlimited(),
        capacity=10,
        leases=between,
        queries=between,
        marks=marks,
    )
    changed = file(assets=(asset("x"),), watchers=(watcher("x", args="2"),))
    async with anyio.create_task_group() as tasks:

        async def change() -> None:
            tasks.start_soon(sync, postgres, changed)
            await _somebody_waits(postgres)

        between.then = change
        await ownership.leave({fence.stream_digest: fence})
    (stream,) = await rows(postgres, Stream)
    (moved,) = await rows(postgres, Watcher)
    assert (stream.owner, moved.owner, moved.state) == (None, None, "waiting")
