"""The logical date of a run that a person has asked for."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.models import DagRun


async def set_logical_date(
    session: AsyncSession, run_pk: int, logical_date: datetime, *, start: datetime, end: datetime
) -> None:
    """Set a new run's logical date and data interval, in the transaction that creates it."""
    await session.execute(
        update(DagRun)
        .where(DagRun.id == run_pk)
        .values(logical_date=logical_date, data_interval_start=start, data_interval_end=end)
    )
