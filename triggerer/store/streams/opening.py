"""Keeps new streams closed until all DAG files have been read.

Several files may declare watchers of one stream. If the first file opened the stream, the watchers of later files would
miss messages.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from sqlalchemy import ColumnElement, and_, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.dag_files.new_streams import closings
from triggerer.store.database.transactions import database_now
from triggerer.store.schema.models import Stream, Trigger, Watcher
from triggerer.store.watchers.locks import lock_watchers

REASON: Final = "the DAGs folder has not been read yet"
"""The error that is shown for a watcher whose stream may not be opened yet."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How far the DAG processor has read the files of the DAG folder."""

    is_reading: bool = False
    """True if some files are not read yet."""
    is_start: bool = False
    """True if the folder is read for the first time since the DAG processor started."""
    limit: timedelta = timedelta()
    """The longest time that a new stream stays closed."""


@dataclass(frozen=True, slots=True)
class Openings:
    """The result of `sync_openings`."""

    opened: frozenset[str] = frozenset()
    """The digests of streams that were closed and may be opened now."""
    are_closed: bool = False
    """True if any stream is still closed."""


async def sync_openings(session: AsyncSession, new: Set[str], reading: Reading) -> Openings:
    """Store until when each new stream stays closed, and show the reason as the error of the stream's watchers.

    A stream is new until an instance has claimed it for the first time.

    Args:
        new: The digests of the streams that this transaction has created.
    """
    never_claimed = {
        row.digest: row.closed_until
        for row in await session.execute(
            select(Stream.digest, Stream.closed_until).where(Stream.epoch == 0)
        )
    }
    changes = closings(
        never_claimed,
        new=new,
        is_reading=reading.is_reading,
        is_start=reading.is_start,
        now=await database_now(session),
        limit=reading.limit,
    )
    for until in set(changes.values()):
        digests = [digest for digest, each in changes.items() if each == until]
        # An instance may have claimed a stream since the query above. So check again that the epoch is still 0.
        await session.execute(
            update(Stream)
            .where(Stream.digest.in_(digests), Stream.epoch == 0)
            .values(closed_until=until)
        )
    opened = frozenset(digest for digest, until in changes.items() if until is None)
    closed = [digest for digest, until in (never_claimed | changes).items() if until is not None]
    shown = [
        (_waiting(opened, Watcher.error == REASON), None),
        # A new watcher may join a stream that has been closed for some time.
        (_waiting(closed, Watcher.error.is_(None)), REASON),
    ]
    if opened or closed:
        await lock_watchers(session, or_(*(condition for condition, _ in shown)))
        for condition, error in shown:
            await session.execute(update(Watcher).where(condition).values(error=error))
    return Openings(opened, bool(closed))


def _waiting(digests: Collection[str], has_error: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return the condition that a watcher waits for one of these streams, and has this error."""
    triggers = select(Trigger.id).where(Trigger.stream_digest.in_(digests))
    return and_(Watcher.trigger_id.in_(triggers), Watcher.state == "waiting", has_error)
