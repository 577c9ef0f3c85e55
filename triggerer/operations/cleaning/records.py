"""Deletes old rows of the audit and old parked messages."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Final

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
    gone = _ROWS
    while gone == _ROWS:
        began = time.monotonic()
        async with database.transaction() as session:
            gone = await delete_old_audit(session, before, limit=_ROWS)
        cleaned.audit += gone
        await pace.give_way(began)


async def clean_parked(database: Database, before: datetime, cleaned: Cleaned, pace: Pace) -> None:
    """Delete messages that were parked before an instant. Messages that are stored for a backlog stay."""
    if cleaned.dry_run:
        async with database.reading() as session:
            cleaned.parked = await count_old_parked(session, before)
        return
    gone = _ROWS
    while gone == _ROWS:
        began = time.monotonic()
        async with database.transaction() as session:
            gone = await delete_old_parked(session, before, limit=_ROWS)
        cleaned.parked += gone
        await pace.give_way(began)
