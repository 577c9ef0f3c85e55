"""Stores the last notification about each watcher and DAG, so that no process notifies people again."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, delete, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.notifications import Event, LastNotification, Occurrence
from triggerer.store.database.transactions import insert_into
from triggerer.store.listing.filters import some_of
from triggerer.store.schema.models import DagRun, NotifiedSubject, ParkedMessage, Watcher

_DIGEST: Final = ("digest", "")
_REMEMBERED: Final = timedelta(days=1)


async def lock_notifications(session: AsyncSession, now: datetime) -> None:
    """Lock a row, so that other processes that create notifications wait until this transaction commits."""
    values = _values(_DIGEST, datetime.fromtimestamp(0, now.tzinfo))
    await session.execute(
        insert_into(session, NotifiedSubject)
        .values(**values)
        .on_conflict_do_nothing(index_elements=[NotifiedSubject.event, NotifiedSubject.subject])
    )
    await session.execute(
        select(NotifiedSubject.event).where(_is(_DIGEST)).with_for_update(of=NotifiedSubject)
    )


async def load_notified(
    session: AsyncSession,
) -> tuple[dict[tuple[str, str], LastNotification], datetime | None]:
    """Return the last notification about each object, and the instant of the last digest.

    If there was no digest yet, the instant is the beginning of 1970, which `lock_notifications` has stored. If
    `lock_notifications` was never called, the instant is None.
    """
    rows = await session.scalars(select(NotifiedSubject))
    told = {
        (row.event, row.subject): LastNotification(
            row.told_at, row.is_single, row.is_failing, row.since
        )
        for row in rows
    }
    digest = told.pop(_DIGEST, None)
    return told, None if digest is None else digest.at


async def mark_notified(
    session: AsyncSession, occurrences: Iterable[Occurrence], now: datetime, *, in_digest: bool
) -> None:
    """Store that notifications about these occurrences were made, in the transaction that queues the notifications."""
    occurrences = list(occurrences)
    for one in occurrences:
        is_failing = one.event is Event.WATCHER_FAILING and not one.is_over
        since = one.since if is_failing else None
        values = _values(one.key, now, is_single=not in_digest, is_failing=is_failing, since=since)
        await _put(session, values)
    if in_digest and occurrences:
        await _put(session, _values(_DIGEST, now))
    for event, table in ((Event.RUN_FAILED, DagRun), (Event.PARKED, ParkedMessage)):
        rows = [pk for one in occurrences if one.event is event for pk in one.rows]
        for chosen in some_of(rows, table.id):
            await session.execute(update(table).where(chosen).values(notified_at=now))


async def forget_notified(session: AsyncSession, now: datetime) -> None:
    """Delete the records of notifications that were made more than a day ago.

    The record of a failing watcher stays until people were notified of its recovery, or until the watcher is deleted.
    """
    is_of_watcher = NotifiedSubject.event == Event.WATCHER_FAILING.value
    failing = select(NotifiedSubject.subject).where(is_of_watcher, NotifiedSubject.is_failing)
    told = [int(subject) for subject in await session.scalars(failing)]
    known: set[int] = set()
    for chosen in some_of(told, Watcher.id):
        alive = select(Watcher.id).where(chosen, Watcher.trigger_id.is_not(None))
        known.update(await session.scalars(alive))
    gone = [str(one) for one in told if one not in known]
    for chosen in some_of(gone, NotifiedSubject.subject):
        await session.execute(delete(NotifiedSubject).where(is_of_watcher, chosen))
    # The row of the digest stays, because `lock_notifications` locks it.
    await session.execute(
        delete(NotifiedSubject).where(
            NotifiedSubject.told_at < now - _REMEMBERED,
            NotifiedSubject.is_failing.is_(False),
            NotifiedSubject.event != _DIGEST[0],
        )
    )


def _is(key: tuple[str, str]) -> ColumnElement[bool]:
    return (NotifiedSubject.event == key[0]) & (NotifiedSubject.subject == key[1])


def _values(
    key: tuple[str, str],
    told_at: datetime,
    *,
    is_single: bool = True,
    is_failing: bool = False,
    since: datetime | None = None,
) -> dict[str, object]:
    return {
        "event": key[0],
        "subject": key[1],
        "told_at": told_at,
        "is_single": is_single,
        "is_failing": is_failing,
        "since": since,
    }


async def _put(session: AsyncSession, values: dict[str, object]) -> None:
    await session.execute(
        insert_into(session, NotifiedSubject)
        .values(**values)
        .on_conflict_do_update(
            index_elements=[NotifiedSubject.event, NotifiedSubject.subject], set_=values
        )
    )
