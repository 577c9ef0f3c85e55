"""Renews and reads the marks of streams. See `triggerer.domain.watchers.stream_marks`.

A mark contains the time of its last renewal. The service stores the mark in the database, and the producer stores it
with its position at the broker. If the broker's mark is newer than the database's, the database was restored from a
backup.
"""

from __future__ import annotations

from collections.abc import Iterable
from secrets import token_hex

from sqlalchemy import or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.events import Fence
from triggerer.domain.watchers.stream_marks import StoredMark
from triggerer.store.database.transactions import database_now
from triggerer.store.schema.models import Stream


async def renew_marks(
    session: AsyncSession, fences: Iterable[Fence], renewed: Iterable[Fence]
) -> dict[Fence, StoredMark]:
    """Renew the marks of the streams in `renewed`, and return the marks of all streams in `fences`.

    The transaction must have locked the streams and checked their leases. A mark never gets older, even if the
    database's clock is set back.

    Args:
        fences: The leases whose marks are returned.
        renewed: The leases whose marks are renewed, if they are in `fences` too.
    """
    by_digest = {fence.stream_digest: fence for fence in fences}
    chosen = [one.stream_digest for one in renewed if by_digest.get(one.stream_digest) == one]
    if chosen:
        now = await database_now(session)
        await session.execute(
            update(Stream)
            .where(
                Stream.digest.in_(chosen), or_(Stream.marked_at.is_(None), Stream.marked_at < now)
            )
            .values(marked_at=now)
        )
    columns = select(Stream.digest, Stream.incarnation, Stream.marked_at)
    rows = await session.execute(columns.where(Stream.digest.in_(list(by_digest))))
    return {by_digest[digest]: StoredMark(text, at) for digest, text, at in rows}


async def begin_incarnation(session: AsyncSession) -> None:
    """Begin a new incarnation of all streams' marks.

    Call it after a restore of the database. Otherwise the streams would refuse to open, because the
    marks at the brokers are newer than the restored marks. Marks of different incarnations are not
    compared.
    """
    await session.execute(update(Stream).values(incarnation=token_hex(8)))
