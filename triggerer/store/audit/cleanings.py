"""Lets one cleaning of the database run at a time. Stores the last outcomes, and the totals of deleted rows and logs.

A cleaning takes the turn when it begins. The turn expires unless the cleaning extends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.errors import LeaseLost
from triggerer.store.database.transactions import database_now, insert_into
from triggerer.store.schema.models import CleanedRows, CleaningTurn

TURN: Final = timedelta(minutes=2)
"""A cleaning that has not reported a step for this long counts as dead, and another one may begin."""
_ROW: Final = 1


@dataclass(frozen=True, slots=True)
class CleaningState:
    """The cleaning that is under way, and the outcomes of the last cleanings."""

    made_at: datetime
    """When a process first asked whether a cleaning is due, or started a cleaning."""
    holder: str | None
    """The id of the cleaning that is under way, or None."""
    began_at: datetime | None
    """When the last cleaning began."""
    succeeded_at: datetime | None
    """When the last cleaning without an error ended."""
    deleted: Mapping[str, int]
    """The numbers of rows and logs that the last cleaning without an error deleted, by kind."""
    failed_at: datetime | None
    """When the last cleaning with an error ended."""
    error: str | None
    """The error of the last cleaning that was not stopped. None: it had no error."""
    failures: int
    """The number of cleanings that have failed on this database."""
    full_bytes: int | None
    """The size of the database after the last cleaning, if this size was above the configured bound.

    The value is None otherwise, and always on SQLite.
    """


async def begin_turn(session: AsyncSession, holder: str) -> bool:
    """Take the turn for a cleaning, unless another cleaning has it; return True if the turn was taken.

    If the stored turn expires later than `TURN` from now, the clock was set back, and the turn does not count.
    """
    row = await _locked(session)
    now = await database_now(session)
    if row.holder is not None and row.expires_at is not None and now < row.expires_at <= now + TURN:
        return False
    row.holder, row.began_at, row.expires_at = holder, now, now + TURN
    return True


async def extend_turn(session: AsyncSession, holder: str) -> None:
    """Extend the turn until `TURN` from now, so that no other cleaning starts.

    Raises:
        LeaseLost: The turn of this cleaning expired, and another cleaning has taken it.
    """
    now = await database_now(session)
    extended = await session.execute(
        update(CleaningTurn)
        .where(CleaningTurn.holder == holder)
        .values(expires_at=now + TURN)
        .returning(CleaningTurn.id)
    )
    if extended.first() is None:
        raise LeaseLost("another cleaning has begun, because this one did not report for too long")


async def end_turn(
    session: AsyncSession,
    holder: str,
    *,
    deleted: Mapping[str, int] | None = None,
    error: str | None = None,
) -> None:
    """End a cleaning, and store its outcome. If another cleaning has taken the turn, nothing changes.

    Args:
        deleted: The numbers of deleted rows and logs by kind, if the cleaning had no error.
        error: The error of the cleaning, or None. If `deleted` and `error` are both None, the cleaning was stopped, and
            no outcome is stored.
    """
    row = await _locked(session)
    now = await database_now(session)
    if row.holder != holder:
        return
    row.holder = row.expires_at = None
    if error is not None:
        row.failed_at, row.error, row.failures = now, error, row.failures + 1
    elif deleted is not None:
        row.succeeded_at, row.error, row.deleted = now, None, dict(deleted)


async def read_state(session: AsyncSession) -> CleaningState | None:
    """Return the state of cleanings, or None if neither `make_state` nor `begin_turn` was ever called."""
    now = await database_now(session)
    row = await session.get(CleaningTurn, _ROW)
    if row is None:
        return None
    is_held = row.expires_at is not None and now < row.expires_at <= now + TURN
    return CleaningState(
        row.made_at,
        row.holder if is_held else None,
        row.began_at,
        row.succeeded_at,
        row.deleted or {},
        row.failed_at,
        row.error,
        row.failures,
        row.full_bytes,
    )


async def make_state(session: AsyncSession) -> None:
    """Store the present time as `CleaningState.made_at`, unless a time is already stored."""
    await _locked(session)


async def save_full_bytes(session: AsyncSession, size_bytes: int | None) -> None:
    """Store the size of the database if it exceeded the configured bound even after a cleaning; else None."""
    await session.execute(update(CleaningTurn).values(full_bytes=size_bytes))


async def _locked(session: AsyncSession) -> CleaningTurn:
    now = await database_now(session)
    made = {"id": _ROW, "made_at": now, "failures": 0}
    await session.execute(insert_into(session, CleaningTurn).values(made).on_conflict_do_nothing())
    rows = await session.scalars(select(CleaningTurn).with_for_update())
    return rows.one()


async def add_cleaned(session: AsyncSession, numbers: Mapping[str, int]) -> None:
    """Increase each kind's total by the number of rows or logs that a cleaning has deleted."""
    rows = [{"kind": kind, "number": number} for kind, number in numbers.items()]
    insert = insert_into(session, CleanedRows).values(rows)
    added = {"number": CleanedRows.number + insert.excluded.number}
    await session.execute(insert.on_conflict_do_update(index_elements=["kind"], set_=added))


async def read_cleaned(session: AsyncSession) -> dict[str, int]:
    """Return how many rows or logs of each kind cleanings have deleted in total."""
    return {row.kind: row.number for row in await session.scalars(select(CleanedRows))}
