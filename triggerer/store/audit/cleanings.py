"""Adds up what cleanings have deleted, for the metrics."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.database.transactions import database_now, insert_into
from triggerer.store.schema.models import CleanedRows


async def add_cleaned(session: AsyncSession, numbers: Mapping[str, int]) -> None:
    """Add the numbers of rows that a cleaning has deleted, by kind, and store that this cleaning succeeded now."""
    now = await database_now(session)
    rows = [{"kind": kind, "number": number, "ended_at": now} for kind, number in numbers.items()]
    insert = insert_into(session, CleanedRows).values(rows)
    added = {
        "number": CleanedRows.number + insert.excluded.number,
        "ended_at": insert.excluded.ended_at,
    }
    await session.execute(insert.on_conflict_do_update(index_elements=["kind"], set_=added))


async def read_cleaned(session: AsyncSession) -> tuple[dict[str, int], datetime | None]:
    """Return how many rows of each kind all cleanings have deleted, and when the last one ended (None: none did)."""
    rows = (await session.scalars(select(CleanedRows))).all()
    numbers = {row.kind: row.number for row in rows}
    return numbers, max((row.ended_at for row in rows), default=None)
