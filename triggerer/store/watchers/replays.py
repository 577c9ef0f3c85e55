"""Stores requests for replays. The owner of the watcher's stream then rewinds the watcher in its log."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.instants import readable
from triggerer.errors import TriggererError, UnknownWatcher
from triggerer.store.database.transactions import database_now
from triggerer.store.database.wakeups.signals import Signal, announce
from triggerer.store.listing.filters import is_asset
from triggerer.store.schema.models import Asset, Trigger, Watcher, WatcherReplay

_BOOKMARKED: Final = "watcher-"
_STANDALONE: Final = ("trigger-", _BOOKMARKED)
"""The prefixes of a `Stream.digest` that belongs to a single trigger, not to a shared stream.

The first prefix is for triggers without a bookmark, the second for triggers with a bookmark."""


@dataclass(frozen=True, slots=True)
class ReplayView:
    """A stored replay request."""

    id: int
    asset_name: str
    watcher: str
    start: datetime | None
    """Messages that were published from this instant on are replayed. None: from the earliest message."""
    again: bool
    """True if events are created again for messages that already have events."""
    requested_at: datetime


def has_shared_stream(stream_digest: str) -> bool:
    """Return whether the digest is of a shared stream, not of a single trigger."""
    return not stream_digest.startswith(_STANDALONE)


def has_bookmark(stream_digest: str) -> bool:
    """Return whether the digest is of a single trigger whose position is stored in the database."""
    return stream_digest.startswith(_BOOKMARKED)


async def ask_for_replay(
    session: AsyncSession, asset: str, name: str, *, start: datetime | None, reemit: bool
) -> ReplayView:
    """Store a replay request, and wake the owner of the watcher's stream.

    The owner carries the request out, or shows why the watcher cannot be replayed.

    Args:
        asset: The asset's name or URI.
        start: Replay messages that were published from this instant on. None: from the earliest message.
        reemit: True to create events again, under new keys, for messages that already have events.
    Raises:
        TriggererError: There is no such watcher, it has no shared stream, or `start` is in the future. It is also
            raised if `reemit` is False and events from after `start` were deleted. Then the store cannot tell which
            messages had events.
    """
    rows = await session.execute(
        select(Watcher, Asset.name, Trigger.stream_digest)
        .join(Asset, Asset.id == Watcher.asset_id)
        .join(Trigger, Trigger.id == Watcher.trigger_id)
        .where(is_asset(asset), Watcher.name == name)
        # `db clean` takes this lock before it looks for replay requests and deletes the watcher's events.
        .with_for_update(of=Watcher)
    )
    found = rows.first()
    if found is None:
        raise UnknownWatcher(asset, name)
    watcher, asset_name, stream_digest = found
    if not has_shared_stream(stream_digest):
        raise TriggererError(
            f"the watcher {asset_name}/{name} cannot be replayed: it has no shared stream, and so no log",
        )
    now = await database_now(session)
    if start is not None and start > now:
        raise TriggererError(f"{readable(start)} is still to come: it is {readable(now)} now")
    cleaned = watcher.cleaned_before
    if cleaned is not None and not reemit and (start is None or start < cleaned):
        raise TriggererError(
            f"{asset_name}/{name}: events from before {readable(cleaned)} were deleted, and with them the keys that "
            "show which messages are repeats",
            hint=f"use --from {cleaned.isoformat()} or later, or use --again to create all events again",
        )
    request = WatcherReplay(watcher_id=watcher.id, start=start, reemit=reemit, requested_at=now)
    session.add(request)
    await session.flush()
    announce(session, Signal.STREAMS_CHANGED, stream_digest)
    return ReplayView(request.id, asset_name, name, start, reemit, now)
