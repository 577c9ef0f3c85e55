"""Deletes messages that have been parked for long."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.watchers.parked import ParkedState
from triggerer.store.database.script import perform
from triggerer.store.schema.models import ParkedMessage
from triggerer.store.watchers.parked import drop_parked


async def count_old_parked(session: AsyncSession, before: datetime) -> int:
    """Return the number of messages that were parked before an instant."""
    counted = select(func.count()).select_from(ParkedMessage).where(*_is_old(before))
    return (await session.execute(counted)).scalar_one()


async def delete_old_parked(session: AsyncSession, before: datetime, *, limit: int) -> int:
    """Delete at most `limit` messages that were parked before an instant; return how many were deleted.

    A message that an operator is replaying at this moment stays.
    """
    oldest = select(ParkedMessage.id).where(*_is_old(before)).order_by(ParkedMessage.id)
    chosen = await session.scalars(oldest.limit(limit).with_for_update(skip_locked=True))
    return await perform(session, drop_parked(chosen.all()))


def _is_old(before: datetime) -> tuple[ColumnElement[bool], ...]:
    return ParkedMessage.state == ParkedState.SET_ASIDE, ParkedMessage.parked_at < before
