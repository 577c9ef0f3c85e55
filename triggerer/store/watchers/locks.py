"""Locks several watchers in the order that all transactions use."""

from __future__ import annotations

from sqlalchemy import ColumnElement, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.schema.models import Watcher


async def lock_watchers(session: AsyncSession, condition: ColumnElement[bool]) -> None:
    """Lock the watchers that meet the condition, in the order of their ids.

    An UPDATE of several rows locks them in no particular order. So two transactions could deadlock on PostgreSQL. A
    transaction that changes several watchers with one statement calls this function first.
    """
    await session.execute(
        select(Watcher.id).where(condition).order_by(Watcher.id).with_for_update()
    )
