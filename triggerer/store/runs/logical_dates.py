"""Sets the logical date of a run that a user has triggered."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.schema.models import DagRun

if TYPE_CHECKING:
    from triggerer.domain.timetables import DataInterval


async def set_logical_date(
    session: AsyncSession,
    run_pk: int,
    logical_date: datetime,
    interval: DataInterval,
    *,
    partition_key: str | None,
) -> None:
    """Set a new run's logical date, data interval and partition key, in the transaction that creates it."""
    await session.execute(
        update(DagRun)
        .where(DagRun.id == run_pk)
        .values(
            logical_date=logical_date,
            data_interval_start=interval.start,
            data_interval_end=interval.end,
            partition_key=partition_key,
        )
    )
