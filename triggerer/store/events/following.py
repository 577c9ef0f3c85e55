"""Asset events in the order of their arrival, for clients that want everything that is recorded from now on.

On PostgreSQL ids do not follow the order of commits: a transaction takes its ids, and others with higher ids may commit
first. So "everything after the highest id" would lose events. A follower therefore reads in sweeps. A sweep ends
at the newest event. It begins at a settled id: every transaction that took a lower id has ended. So it returns the
events of about the last minute again, and a client drops the ids that it knows: at least once, unordered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.errors import CursorRefused
from triggerer.store.database.transactions import database_now
from triggerer.store.events.listing import events_after
from triggerer.store.listing.paging import Page, decode_cursor, encode_cursor
from triggerer.store.listing.views import AssetEventView
from triggerer.store.schema.models import AssetEvent

_NAME: Final = "asset_events_by_arrival"
_MOST_MARKS: Final = 8
_LATEST_SUBMISSION: Final = timedelta(minutes=10)
"""An event's time may lie before the time of its id, because a recorder keeps events while the database is away."""


class _State(BaseModel):
    """The state of a follower, which its cursor carries."""

    model_config = ConfigDict(strict=True, extra="forbid")

    at: int
    """The events up to this id were returned by this sweep or settled before it."""
    settled: int
    """When this sweep began, every transaction that took this id or a lower one had ended."""
    until: int
    """The newest event when this sweep began. 0: the next page begins a sweep."""
    marks: list[tuple[float, int]]
    """Past instants, in seconds, and the newest event then: no event below it can appear one `window` later."""


async def follow_asset_events(
    session: AsyncSession,
    *,
    window: timedelta,
    limit: int = 100,
    after: str | None = None,
    is_from_now: bool = False,
    asset: str | None = None,
    dag: str | None = None,
) -> Page[AssetEventView]:
    """Return the next events in the order of arrival; the cursor is never None.

    Events of the last `window` are returned again with later pages.

    Args:
        window: How long after taking its id an event may appear: twice the longest `commit_timeout` of a service.
        is_from_now: Without a cursor, begin with the present. False: begin with the oldest event.
        asset: Only events that were recorded under this name or this URI.
        dag: Only events that the DAG's runs emitted.
    Raises:
        CursorRefused: The cursor is malformed, or belongs to another list or to other filters.
    """
    filters = {"asset": asset, "dag": dag}
    given = {name: value for name, value in filters.items() if value is not None}
    state = await _begin(session, window, after, given, is_from_now=is_from_now)
    if not state.until:
        await _begin_sweep(session, state, window)
    found = await events_after(session, state.at, limit=limit, **given)
    if found:
        state.at = found[-1].id
    if len(found) < limit or state.at >= state.until:
        # The events above `until` that this page returned are returned again by the next sweep, unless they settle.
        state.at, state.until = state.settled, 0
    return Page(found, encode_cursor(_NAME, given, state.model_dump(mode="json")))


async def _begin(
    session: AsyncSession,
    window: timedelta,
    after: str | None,
    filters: Mapping[str, Any],
    *,
    is_from_now: bool,
) -> _State:
    if after is not None:
        key = decode_cursor(after, _NAME, filters)
        try:
            state = _State.model_validate_json(json.dumps(key))
        except ValidationError as error:
            raise CursorRefused("the cursor is malformed") from error
        if max(state.at, state.settled, state.until, *(top for _, top in state.marks), 0) >= 2**63:
            raise CursorRefused("the cursor is malformed")
        return state
    settled = await _settled_id(session, window)
    return _State(at=settled if is_from_now else 0, settled=settled, until=0, marks=[])


async def _begin_sweep(session: AsyncSession, state: _State, window: timedelta) -> None:
    """Store the newest event of this sweep, and the settled id of the next one."""
    state.until = await session.scalar(select(func.max(AssetEvent.id))) or 0
    if session.get_bind().dialect.name == "sqlite":
        # One transaction at a time takes ids and commits them.
        state.settled = state.until
        return
    now = (await database_now(session)).timestamp()
    seconds = window.total_seconds()
    # A mark is a promise about all earlier ids, so few of them do. They are at least a quarter of the window apart.
    if not state.marks or now - state.marks[-1][0] >= seconds / 4:
        state.marks.append((now, state.until))
    settled = [top for at, top in state.marks if at <= now - seconds]
    if settled:
        state.settled = max(state.settled, settled[-1])
        state.marks = state.marks[len(settled) - 1 :]
    del state.marks[:-_MOST_MARKS]


async def _settled_id(session: AsyncSession, window: timedelta) -> int:
    """Return a settled id, found by the times of the events."""
    if session.get_bind().dialect.name == "sqlite":
        return await session.scalar(select(func.max(AssetEvent.id))) or 0
    limit = await database_now(session) - window - _LATEST_SUBMISSION
    low, high = 0, await session.scalar(select(func.max(AssetEvent.id))) or 0
    # Find the lowest id from `limit` on. A wrong order of times near the limit does no harm: it is well in the past.
    while low < high:
        middle = (low + high + 1) // 2
        at: datetime | None = await session.scalar(
            select(AssetEvent.timestamp)
            .where(AssetEvent.id >= middle)
            .order_by(AssetEvent.id)
            .limit(1)
        )
        if at is not None and at < limit:
            low = middle
        else:
            high = middle - 1
    return low
