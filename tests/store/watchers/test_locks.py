"""Transactions lock several watchers in the order of the watchers' ids, so they cannot deadlock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import anyio
import pytest
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncSession

from tests.store.seeding import NOW, add_asset
from triggerer.store.database.transactions import Database
from triggerer.store.schema.models import Stream, Trigger, Watcher
from triggerer.store.streams.opening import Reading, sync_openings
from triggerer.store.watchers.hosting import reset_to_waiting, write_waiting_reasons


async def _show_reasons(session: AsyncSession) -> None:
    await write_waiting_reasons(session, {"s": "no room"})


async def _reset(session: AsyncSession) -> None:
    await reset_to_waiting(session, ["s"], "me")


async def _close(session: AsyncSession) -> None:
    await sync_openings(session, {"s"}, Reading(is_reading=True, limit=timedelta(hours=1)))


@pytest.mark.parametrize("change", [_show_reasons, _reset, _close])
async def test_a_transaction_that_waits_for_a_watcher_has_locked_none_with_a_higher_id(
    postgres: Database, change: Callable[[AsyncSession], Awaitable[Any]]
) -> None:
    await add_asset(postgres, 1, "orders")
    async with postgres.transaction() as session:
        session.add(Stream(digest="s", key="s", epoch=0))
        session.add(Trigger(id=1, digest="t", classpath="x.Y", kwargs={}, stream_digest="s"))
    for number in (2, 1):
        # Insert the higher id first, because PostgreSQL reads a small table in the order of its insertions.
        async with postgres.transaction() as session:
            values: dict[str, Any] = {"state": "waiting", "owner": "me", "updated_at": NOW}
            session.add(
                Watcher(
                    id=number, asset_id=1, name=f"w{number}", trigger_id=1, path="x.py", **values
                )
            )

    async def change_all() -> None:
        async with postgres.transaction() as session:
            await change(session)

    lock = select(Watcher.id).with_for_update(nowait=True)
    waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    async with anyio.create_task_group() as tasks, postgres.transaction() as session:
        await session.execute(lock.where(Watcher.id == 1))
        tasks.start_soon(change_all)
        with anyio.fail_after(30):
            while not await session.scalar(waiting):  # noqa: ASYNC110 (PostgreSQL announces no waiting)
                await anyio.sleep(0.01)
        await session.execute(lock.where(Watcher.id == 2))
