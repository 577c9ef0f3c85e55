"""Messages that are parked for watchers: written by the owner of their stream."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.events import Fence
from triggerer.domain.parked import (
    KeptMessage,
    ParkedBounds,
    ParkedChange,
    ParkedState,
    Returned,
    SetAside,
)
from triggerer.store.engine.script import Script
from triggerer.store.engine.statement import Statement, in_list
from triggerer.store.models import ParkedBody, ParkedMessage, Trigger, Watcher
from triggerer.store.queries.held_fences import held_fences

# Without the message itself: that of a repeat is there already.
_USED: Final = Statement(
    "SELECT count(m.id), coalesce(sum(b.size_bytes), 0), "
    "(SELECT coalesce(sum(size_bytes), 0) FROM parked_body "
    "WHERE NOT (stream_digest = {digest} AND idempotency_key = {key})) "
    "FROM parked_message m JOIN parked_body b ON b.id = m.body_id "
    "WHERE m.watcher_id = {watcher_id} AND m.idempotency_key <> {key}"
)
_KEEP_BODY: Final = Statement(
    "INSERT INTO parked_body (stream_digest, idempotency_key, data, size_bytes) "
    "VALUES ({digest}, {key}, {data}, {size_bytes}) "
    "ON CONFLICT (stream_digest, idempotency_key) DO UPDATE SET size_bytes = excluded.size_bytes "
    "RETURNING id"
)
_SET_ASIDE: Final = Statement(
    "INSERT INTO parked_message "
    "(watcher_id, body_id, lane, idempotency_key, state, failures, error, traceback, parked_at) "
    "VALUES ({watcher_id}, {body_id}, {lane}, {key}, {state}, {failures}, {error}, {traceback}, {parked_at}) "
    "ON CONFLICT (watcher_id, idempotency_key) DO UPDATE SET state = excluded.state, "
    "failures = excluded.failures, error = excluded.error, traceback = excluded.traceback"
)
_RETURN: Final = Statement(
    "UPDATE parked_message SET state = {state}, failures = failures + 1, error = {error}, "
    "traceback = {traceback} WHERE id = {id}"
)
_DROP: Final = Statement(
    "DELETE FROM parked_message WHERE id {IDS} RETURNING body_id", IDS=in_list("ids", "bigint")
)
_DROP_BODIES: Final = Statement(
    "DELETE FROM parked_body WHERE id {IDS} "
    "AND NOT EXISTS (SELECT 1 FROM parked_message m WHERE m.body_id = parked_body.id)",
    IDS=in_list("ids", "bigint"),
)


def write_parked(
    changes: Sequence[ParkedChange], bounds: ParkedBounds
) -> Script[tuple[frozenset[Fence], list[ParkedChange]]]:
    """Store these changes in their order, as far as their fences hold and the bounds allow.

    Returns:
        The fences that do not hold, and the changes that a bound did not allow.
    """
    fences = {change.fence for change in changes}
    held = yield from held_fences(fences)
    refused, gone = [], []
    for change in changes:
        if change.fence not in held:
            continue
        what = change.what
        if isinstance(what, SetAside):
            if not (yield from _set_aside(change.fence, change.watcher_id, what, bounds)):
                refused.append(change)
        elif isinstance(what, Returned):
            yield _RETURN(
                id=what.id,
                state=ParkedState.SET_ASIDE.value,
                error=what.error,
                traceback=what.traceback,
            )
        else:
            gone.append(what.id)
    yield from drop_parked(gone)
    return frozenset(fences) - held, refused


def _set_aside(fence: Fence, watcher_id: int, what: SetAside, bounds: ParkedBounds) -> Script[bool]:
    digest, size_bytes = fence.stream_digest, len(what.data)
    ((messages, used, total),) = yield _USED(digest=digest, key=what.key, watcher_id=watcher_id)
    if (
        messages >= bounds.max_messages
        or used + size_bytes > bounds.max_bytes
        or total + size_bytes > bounds.total_bytes
    ):
        return False
    ((body_id,),) = yield _KEEP_BODY(
        digest=digest, key=what.key, data=what.data, size_bytes=size_bytes
    )
    yield _SET_ASIDE(
        watcher_id=watcher_id,
        body_id=body_id,
        lane=what.lane,
        key=what.key,
        state=ParkedState.SET_ASIDE.value,
        failures=what.failures,
        error=what.error,
        traceback=what.traceback,
        parked_at=what.parked_at,
    )
    return True


def drop_parked(ids: Collection[int]) -> Script[int]:
    """Delete these messages, and the bytes to which none refers any more; return how many there were."""
    if not ids:
        return 0
    rows = yield _DROP(ids=sorted(ids))
    yield _DROP_BODIES(ids=sorted({body_id for (body_id,) in rows}))
    return len(rows)


async def read_kept(
    session: AsyncSession, watcher_id: int, after: int, limit: int
) -> list[KeptMessage]:
    """Return the next messages that are kept for a watcher, in the order in which they were parked."""
    rows = await session.execute(
        select(ParkedMessage.id, ParkedMessage.lane, ParkedMessage.idempotency_key, ParkedBody.data)
        .join(ParkedBody, ParkedBody.id == ParkedMessage.body_id)
        .where(
            ParkedMessage.watcher_id == watcher_id,
            ParkedMessage.id > after,
            ParkedMessage.state == ParkedState.KEPT,
        )
        .order_by(ParkedMessage.id)
        .limit(limit)
    )
    return [KeptMessage(*row) for row in rows]


async def watchers_with_kept(session: AsyncSession, stream_digests: Iterable[str]) -> set[int]:
    """Return the watchers of these streams for which messages are kept."""
    rows = await session.scalars(
        select(ParkedMessage.watcher_id)
        .join(Watcher, Watcher.id == ParkedMessage.watcher_id)
        .join(Trigger, Trigger.id == Watcher.trigger_id)
        .where(
            ParkedMessage.state == ParkedState.KEPT,
            Trigger.stream_digest.in_(list(stream_digests)),
        )
        .distinct()
    )
    return set(rows)
