"""Deletes old rows of the audit."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.schema.models import Audit


async def count_old_audit(session: AsyncSession, before: datetime) -> int:
    """Return the number of rows from before an instant."""
    counted = select(func.count()).select_from(Audit).where(Audit.at < before)
    return (await session.execute(counted)).scalar_one()


async def delete_old_audit(session: AsyncSession, before: datetime, *, limit: int) -> int:
    """Delete at most `limit` rows from before an instant, the oldest first; return how many were deleted."""
    oldest = select(Audit.id).where(Audit.at < before).order_by(Audit.at).limit(limit)
    gone = await session.scalars(delete(Audit).where(Audit.id.in_(oldest)).returning(Audit.id))
    return len(gone.all())
