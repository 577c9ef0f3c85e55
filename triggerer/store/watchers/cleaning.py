"""Finds the watchers whose old events must stay, because their messages may be delivered again.

The idempotency key of a stored event shows that a redelivered message is not new. So an event may be deleted only once
the broker has advanced past its message. The store does not know the broker's position. It assumes that the broker has
advanced past a watcher's old messages if all of these conditions hold:

- an instance has the lease of the watcher's stream,
- all watchers of the stream have been running for a while (the stream is in good order),
- the watcher has no backlog, and no replay was requested for it.

A watcher that no file declares has no stream. For such a watcher, the first two conditions are replaced: no file has
declared it for a while.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import ColumnElement, exists, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from triggerer.store.schema.models import (
    Asset,
    AssetEvent,
    ParkedMessage,
    Stream,
    Trigger,
    Watcher,
    WatcherPosition,
    WatcherReplay,
)
from triggerer.store.watchers.locks import lock_watchers


@dataclass(frozen=True, slots=True)
class UnsettledWatcher:
    """A watcher whose old events must stay, and the reason why."""

    asset_name: str
    watcher: str
    reason: str


async def unsettled_watchers(
    session: AsyncSession, *, now: datetime, quiet_since: datetime
) -> Mapping[int, UnsettledWatcher]:
    """Return the watchers whose messages may be delivered again, by watcher id.

    Args:
        quiet_since: A stream is in good order only if all its watchers have been running since this instant.
    """
    rows = await session.execute(
        select(
            Watcher.id,
            Asset.name,
            Watcher.name,
            Watcher.state,
            Watcher.updated_at,
            Trigger.stream_digest,
            Stream.expires_at,
            _has(WatcherPosition.watcher_id),
            _has(WatcherReplay.watcher_id),
        )
        .join(Asset, Asset.id == Watcher.asset_id)
        .outerjoin(Trigger, Trigger.id == Watcher.trigger_id)
        .outerjoin(Stream, Stream.digest == Trigger.stream_digest)
        .order_by(Watcher.id)
    )
    shown = [_Shown(*row) for row in rows]
    of_streams: dict[str, tuple[_Shown, str]] = {}
    for one in shown:
        if one.stream_digest is not None and (disorder := one.disorder(now, quiet_since)):
            of_streams.setdefault(one.stream_digest, (one, disorder))
    unsettled = {}
    for one in shown:
        reason = None
        if one.stream_digest is not None:
            if one.stream_digest in of_streams:
                who, disorder = of_streams[one.stream_digest]
                reason = f"{'it' if who is one else f'{who.asset_name}/{who.name}'} {disorder}"
        elif one.since > quiet_since:
            reason = f"no file has declared it since {_formatted(one.since)}"
        if one.is_behind:
            reason = reason or "it is behind in its log"
        if one.is_replayed:
            reason = reason or "a replay was requested"
        if reason:
            unsettled[one.id] = UnsettledWatcher(one.asset_name, one.name, reason)
    return unsettled


class _Shown(NamedTuple):
    """A watcher as the store shows it."""

    id: int
    asset_name: str
    name: str
    state: str
    since: datetime
    stream_digest: str | None
    """None if no file declares the watcher."""
    expires_at: datetime | None
    """The end of the stream's lease."""
    is_behind: bool
    is_replayed: bool

    def disorder(self, now: datetime, quiet_since: datetime) -> str | None:
        """Return what is wrong with this watcher, as the predicate of a sentence, or None.

        If something is wrong with one watcher of a stream, the cleaning deletes no events of the stream's watchers.
        """
        if self.expires_at is None or self.expires_at <= now:
            return "has a stream that nobody reads"
        if self.state != "running":
            return f"is {self.state}"
        if self.since > quiet_since:
            return f"has been running only since {_formatted(self.since)}"
        return None


def _formatted(instant: datetime) -> str:
    return f"{instant:%Y-%m-%dT%H:%M:%SZ}"


async def mark_cleaned(
    session: AsyncSession, watcher_ids: Collection[int], before: datetime
) -> Mapping[int, UnsettledWatcher]:
    """Store that the events of these watchers from before the instant `before` are about to be deleted.

    From then on, `ask_for_replay` refuses a replay that needs the deleted events.

    Returns:
        The watchers that are behind, or for which a replay was requested. These watchers are not marked, and their
        events must stay.
    """
    chosen = Watcher.id.in_(watcher_ids)
    # Lock before the SELECT below. So the SELECT sees the replay requests of transactions that had the lock before.
    await lock_watchers(session, chosen)
    rows = await session.execute(
        select(Watcher.id, Asset.name, Watcher.name)
        .join(Asset, Asset.id == Watcher.asset_id)
        .where(chosen, or_(_has(WatcherPosition.watcher_id), _has(WatcherReplay.watcher_id)))
    )
    unsettled = {
        pk: UnsettledWatcher(asset, name, "it is about to read its log again")
        for pk, asset, name in rows
    }
    await session.execute(
        update(Watcher)
        .where(
            chosen,
            Watcher.id.not_in(unsettled),
            or_(Watcher.cleaned_before.is_(None), Watcher.cleaned_before < before),
        )
        .values(cleaned_before=before)
    )
    return unsettled


def _has(watcher_id: InstrumentedAttribute[int]) -> ColumnElement[bool]:
    """Return the condition that the `Watcher` has a row in the table of this column."""
    return exists().where(watcher_id == Watcher.id)


async def events_of_parked(session: AsyncSession) -> set[int]:
    """Return the ids of events whose message is stored or parked. The watcher may receive such a message again."""
    found = select(AssetEvent.id).join(
        ParkedMessage,
        (ParkedMessage.idempotency_key == AssetEvent.idempotency_key)
        & (ParkedMessage.watcher_id == AssetEvent.watcher_id),
    )
    return set(await session.scalars(found))
