"""Asks the owner of a stream to set one of its watchers back in its log."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.errors import TriggererError
from triggerer.store.engine.database import database_now
from triggerer.store.models import Asset, Trigger, Watcher, WatcherReplay
from triggerer.store.queries.listing.filters import is_asset
from triggerer.store.wakeups.signals import Signal, announce

_ON_ITS_OWN = "trigger-"
"""How the digest of a stream begins that is one trigger without a shared stream, see `Stream.digest`."""


@dataclass(frozen=True, slots=True)
class ReplayView:
    """A request, as it was stored."""

    id: int
    asset_name: str
    watcher: str
    start: datetime | None
    """None: from the earliest message."""
    again: bool
    requested_at: datetime


async def ask_for_replay(
    session: AsyncSession, asset: str, name: str, *, start: datetime | None, again: bool
) -> ReplayView:
    """Store a request; the owner of the watcher's stream carries it out, or shows why it cannot be done.

    Args:
        asset: Its name or its URI.
        start: From what was published then or later; None: from the earliest message.
        again: Whether events that exist are made once more.
    Raises:
        TriggererError: There is no such watcher, it has no shared stream, or the time is still to come.
    """
    rows = await session.execute(
        select(Watcher, Asset.name, Trigger.stream_digest)
        .join(Asset, Asset.id == Watcher.asset_id)
        .join(Trigger, Trigger.id == Watcher.trigger_id)
        .where(is_asset(asset), Watcher.name == name)
    )
    found = rows.first()
    if found is None:
        raise TriggererError(
            f"the asset {asset!r} has no watcher {name!r}", hint="triggerer watchers list"
        )
    watcher, asset_name, stream_digest = found
    if stream_digest.startswith(_ON_ITS_OWN):
        raise TriggererError(
            f"the watcher {asset_name}/{name} cannot be replayed: it has no shared stream, and so no log",
        )
    now = await database_now(session)
    if start is not None and start > now:
        raise TriggererError(
            f"{start.isoformat()} is still to come: it is {now.isoformat(timespec='seconds')}"
        )
    request = WatcherReplay(watcher_id=watcher.id, start=start, again=again, requested_at=now)
    session.add(request)
    await session.flush()
    announce(session, Signal.STREAMS_CHANGED, stream_digest)
    return ReplayView(request.id, asset_name, name, start, again, now)
