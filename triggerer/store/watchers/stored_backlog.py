"""Reads the stored messages of watchers that are behind in a queue, for the instance that owns their stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sqlalchemy import and_, exists, func, or_, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from triggerer.domain.watchers.parked import (
    NO_LONGER_READ,
    ParkedState,
    StoredBacklog,
    StoredMessage,
)
from triggerer.store.schema.models import ParkedBody, ParkedMessage, Trigger, Watcher

# The state is a literal: with a parameter, the planner would not use the partial index.
_IS_KEPT: Final = text(f"parked_message.state = '{ParkedState.KEPT.value}'")


async def read_stored(
    session: AsyncSession,
    stream_digest: str,
    watcher_id: int,
    after: int,
    limit: int,
    lane: str | None = None,
    *,
    max_bytes: int,
) -> list[StoredMessage]:
    """Return the next stored messages of a watcher, in the order of storing.

    Args:
        stream_digest: The stream that reads the messages. If the watcher belongs to another stream by now, the result
            is empty.
        after: Only messages with higher ids than this.
        lane: Only messages of this lane. None: of all lanes.
        max_bytes: Reading stops after the message that brings the total size to this number or more.
    """
    reads_it = (
        select(Watcher.id)
        .join(Trigger, Trigger.id == Watcher.trigger_id)
        .where(Watcher.id == watcher_id, Trigger.stream_digest == stream_digest)
    )
    query = (
        select(
            ParkedMessage.id,
            ParkedMessage.lane,
            ParkedMessage.idempotency_key,
            ParkedMessage.failures,
            ParkedMessage.body_id,
            ParkedBody.size_bytes,
        )
        .join(ParkedBody, ParkedBody.id == ParkedMessage.body_id)
        .where(
            ParkedMessage.watcher_id == watcher_id,
            ParkedMessage.id > after,
            _IS_KEPT,
            exists(reads_it),
        )
        .order_by(ParkedMessage.id)
        .limit(limit)
    )
    if lane is not None:
        query = query.where(ParkedMessage.lane == lane)
    next_ones = query.subquery()
    up_to = func.sum(next_ones.c.size_bytes).over(order_by=next_ones.c.id)
    summed = select(next_ones, (up_to - next_ones.c.size_bytes).label("bytes_before")).subquery()
    page = (
        select(
            summed.c.id,
            summed.c.lane,
            summed.c.idempotency_key,
            ParkedBody.data,
            summed.c.failures,
        )
        .join(ParkedBody, ParkedBody.id == summed.c.body_id)
        # `bytes_before` is the size of the earlier messages. So the first message is returned even if it is larger than
        # `max_bytes`.
        .where(summed.c.bytes_before < max_bytes)
        .order_by(summed.c.id)
    )
    return [StoredMessage(*row) for row in await session.execute(page)]


async def load_stored_backlogs(
    session: AsyncSession, stream_digests: Iterable[str], *, are_replayed: bool = False
) -> dict[int, list[StoredBacklog]]:
    """Return, by watcher id, the lanes with stored messages for watchers of these streams.

    Args:
        are_replayed: True to return only lanes with messages that were parked and that an operator now replays.
    """
    query = (
        select(
            ParkedMessage.watcher_id,
            ParkedMessage.lane,
            func.min(ParkedMessage.parked_at),
            func.count(),
        )
        .join(Watcher, Watcher.id == ParkedMessage.watcher_id)
        .join(Trigger, Trigger.id == Watcher.trigger_id)
        .where(
            _IS_KEPT,
            Trigger.stream_digest.in_(list(stream_digests)),
        )
        .group_by(ParkedMessage.watcher_id, ParkedMessage.lane)
        .order_by(func.min(ParkedMessage.id))
    )
    if are_replayed:
        query = query.where(ParkedMessage.error.is_not(None))
    rows = await session.execute(query)
    found: dict[int, list[StoredBacklog]] = {}
    for row in rows:
        lane = StoredBacklog(*row)
        found.setdefault(lane.watcher_id, []).append(lane)
    return found


async def park_strays(session: AsyncSession) -> None:
    """Park the stored messages of watchers that were deleted, or that now belong to another stream.

    Messages that an operator replays are parked only if the watcher was deleted. If the watcher has moved to another
    stream, the watcher still receives these messages.
    """
    # Use joins, not EXISTS. With EXISTS, PostgreSQL compared all pairs of rows when a table had just grown, because it
    # had no statistics for the table yet.
    message = aliased(ParkedMessage)
    stray = (
        select(message.id)
        .join(ParkedBody, ParkedBody.id == message.body_id)
        .join(Watcher, Watcher.id == message.watcher_id)
        .outerjoin(Trigger, Trigger.id == Watcher.trigger_id)
        .where(
            message.state == ParkedState.KEPT,
            or_(
                Trigger.id.is_(None),
                and_(
                    Trigger.stream_digest != ParkedBody.stream_digest,
                    message.error.is_(None),
                ),
            ),
        )
    )
    await session.execute(
        update(ParkedMessage)
        .where(ParkedMessage.id.in_(stray))
        .values(
            state=ParkedState.SET_ASIDE,
            error=func.coalesce(ParkedMessage.error, NO_LONGER_READ),
        )
        .execution_options(synchronize_session=False)
    )
