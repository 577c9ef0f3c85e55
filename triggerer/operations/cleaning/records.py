"""Deletes old rows of the audit and old parked messages."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Final, Protocol

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.operations.cleaning.cleaned import Cleaned
from triggerer.operations.cleaning.pace import Pace
from triggerer.store.audit.deletion import count_old_audit, delete_old_audit
from triggerer.store.database.transactions import Database
from triggerer.store.watchers.parked_cleaning import count_old_parked, delete_old_parked

_ROWS: Final = 1_000


async def clean_audit(database: Database, before: datetime, cleaned: Cleaned, pace: Pace) -> None:
    """Delete rows of the audit from before an instant."""
    if cleaned.dry_run:
        async with database.reading() as session:
            cleaned.audit = await count_old_audit(session, before)
        return
    async for gone in _delete_in_batches(database, delete_old_audit, before, pace):
        cleaned.audit += gone


async def clean_parked(database: Database, before: datetime, cleaned: Cleaned, pace: Pace) -> None:
    """Delete messages that were parked before an instant. Messages that are stored for a backlog stay."""
    if cleaned.dry_run:
        async with database.reading() as session:
            cleaned.parked = await count_old_parked(session, before)
        return
    async for gone in _delete_in_batches(database, delete_old_parked, before, pace):
        cleaned.parked += gone


class _DeleteOld(Protocol):
    async def __call__(self, session: AsyncSession, before: datetime, *, limit: int) -> int: ...


async def _delete_in_batches(
    database: Database, delete_old: _DeleteOld, before: datetime, pace: Pace
) -> AsyncIterator[int]:
    """Delete all rows from before an instant, in batches of one transaction each. Yield the size of each batch."""
    gone = _ROWS
    while gone == _ROWS:
        began = time.monotonic()
        async with database.transaction() as session:
            gone = await delete_old(session, before, limit=_ROWS)
        yield gone
        await pace.give_way(began)
