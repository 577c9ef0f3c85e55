"""Sets watchers back after the database was restored from a backup.

The backup lacks the newest events, but the broker has already advanced past their messages. Therefore each watcher with
a shared stream gets a replay request. The stream carries out the request before it pulls a message. A stream that is
not a log cannot be read again, so it drops the request.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import exists, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.schema.models import (
    Asset,
    Restoration,
    Stream,
    Trigger,
    Watcher,
    WatcherReplay,
)
from triggerer.store.watchers.replays import has_bookmark, has_shared_stream


@dataclass(frozen=True, slots=True)
class RestoredWatcher:
    """A watcher of the restored database."""

    asset_name: str
    name: str
    trigger: str
    """The class path of the trigger."""
    kwargs: dict[str, Any]
    """The arguments of the trigger."""
    stream: str
    stream_id: str
    start: datetime | None
    """If the upstream is a log, the watcher reads it again from this instant on. None: there is no shared stream.

    An earlier restore may have left an open replay request with an earlier start. Then the log is read from that start.
    """
    has_bookmark: bool
    """True if the trigger's position is stored in the database."""


async def set_back_watchers(
    session: AsyncSession, start: datetime, *, now: datetime
) -> list[RestoredWatcher]:
    """Store a replay request for each watcher with a shared stream.

    A watcher gets no request if an open request from an earlier restore covers this one.

    Returns:
        All watchers that DAG files declare, sorted by asset and name.
    """
    rows = await session.execute(
        select(Watcher, Asset.name, Trigger, Stream.key)
        .join(Asset, Asset.id == Watcher.asset_id)
        .join(Trigger, Trigger.id == Watcher.trigger_id)
        .join(Stream, Stream.digest == Trigger.stream_digest)
        .order_by(Asset.name, Watcher.name)
    )
    return [
        RestoredWatcher(
            asset_name,
            watcher.name,
            trigger.classpath,
            trigger.kwargs,
            stream,
            trigger.stream_digest,
            await _request(session, watcher, start, now)
            if has_shared_stream(trigger.stream_digest)
            else None,
            has_bookmark(trigger.stream_digest),
        )
        for watcher, asset_name, trigger, stream in rows.all()
    ]


async def _request(
    session: AsyncSession, watcher: Watcher, start: datetime, now: datetime
) -> datetime:
    """Request a replay, unless an open request covers it. Return the instant from which the log is read again.

    The replay does not start before `cleaned_before`. Earlier events were deleted, and with them the keys that show
    which messages are repeats. The messages of deleted events need no replay: the broker had advanced past them.

    A message from before `cleaned_before` is lost if it was first read after the backup. It was then older than the
    retention period. Without the deleted keys, nothing tells such a message from a repeat.
    `docs/howto/back-up-and-upgrade.md` names the remedy.
    """
    if watcher.cleaned_before is not None:
        start = max(start, watcher.cleaned_before)
    open_requests = WatcherReplay.watcher_id == watcher.id, WatcherReplay.is_restore
    is_covered = await session.scalar(
        select(exists().where(*open_requests, WatcherReplay.start <= start))
    )
    if not is_covered:
        session.add(
            WatcherReplay(
                watcher_id=watcher.id, start=start, reemit=False, is_restore=True, requested_at=now
            )
        )
        await session.flush()
    return start


async def begin_restoration(session: AsyncSession, start: datetime, *, now: datetime) -> None:
    """Record the restore.

    From now on, `set_back_new_watchers` sets back newly added watchers, until all DAG files have been read.
    """
    session.add(Restoration(start=start, restored_at=now))
    await session.flush()


async def set_back_new_watchers(
    session: AsyncSession, watchers: Collection[Watcher], *, is_reading: bool, now: datetime
) -> bool:
    """After a restore, set back watchers that were declared after the backup.

    Args:
        watchers: The watchers that this transaction has added, and deleted watchers that are declared again.
        is_reading: True if some DAG files are not read yet. False: this is the last call, so watchers that are added
            later are not set back.
    Returns:
        Whether more DAG files must be read before the restore is complete.
    """
    unread = Restoration.files_read_at.is_(None)
    rows = await session.scalars(select(Restoration.start).where(unread))
    if (start := min(rows, default=None)) is None:
        return False
    for watcher in watchers:
        trigger = await session.get_one(Trigger, watcher.trigger_id)
        if has_shared_stream(trigger.stream_digest):
            await _request(session, watcher, start, now)
    if not is_reading:
        await session.execute(update(Restoration).where(unread).values(files_read_at=now))
    return is_reading
