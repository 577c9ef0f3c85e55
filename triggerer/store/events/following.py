"""Reads new asset events, for clients that want every event that is recorded from now on.

On PostgreSQL, a transaction with higher event ids may commit before a transaction with lower ids. A client that asked
for the events after its highest known id would miss the lower ids. Therefore a client reads in rounds:

- A round begins at a settled id: every transaction that took this id or a lower id has ended.
- A round ends at the newest event.

So each round repeats the events of about the last minute, and the client drops the ids that it knows. Delivery is at
least once, and not ordered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import anyio
from pydantic import BaseModel, ConfigDict, ValidationError
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.errors import CursorRefused
from triggerer.store.database.transactions import database_now
from triggerer.store.events.listing import events_after
from triggerer.store.listing.paging import Page, decode_cursor, encode_cursor
from triggerer.store.listing.views import AssetEventView
from triggerer.store.schema.models import AssetEvent

_NAME: Final = "asset_events_by_arrival"
_MOST_MARKS: Final = 8
_LOOK_S: Final = 0.02
_LONGEST_WAIT_S: Final = 2.0
"""How long the first page waits for transactions that write events. The wait holds a connection to the database."""
_WRITERS: Final = text("""
SELECT virtualtransaction FROM pg_locks
WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND relation = 'asset_event'::regclass
""")


class _State(BaseModel):
    """How far a client has read. The cursor that the client sends back contains this state."""

    model_config = ConfigDict(strict=True, extra="forbid")

    at: int
    """The next page begins after this id."""
    settled: int
    """The settled id: when this round began, every transaction that took this id or a lower id had ended."""
    until: int
    """The id where this round ends: the highest id when it began. 0: the next page begins another round."""
    marks: list[tuple[float, int]]
    """Past instants, in seconds since 1970, each with the highest id at that instant.

    An id is settled once its instant is one `window` in the past.
    """


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
    """Return the next events, sorted by id, and the cursor of the next page. There is always a cursor.

    Later pages may return events of the last `window` again. On PostgreSQL, the first page waits until the transactions
    that write events at that moment have ended, but for at most two seconds.

    Args:
        window: How long an event may stay invisible after it got its id: twice the longest `commit_timeout` of a
            service.
        after: The cursor of the previous page. None: the first page.
        is_from_now: False: begin with the oldest event. True: begin after the newest event. But if one of the
            transactions that write events does not end within the two seconds, begin with the oldest event.
        asset: Only events that were recorded under this name or this URI.
        dag: Only events that the DAG's runs emitted.
    Raises:
        CursorRefused: The cursor is malformed, or belongs to another list or to other filters.
    """
    filters = {"asset": asset, "dag": dag}
    given = {name: value for name, value in filters.items() if value is not None}
    state = await _begin(session, window, after, given, is_from_now=is_from_now)
    if not state.until:
        await _begin_round(session, state, window)
    found = await events_after(session, state.at, limit=limit, **given)
    if found:
        state.at = found[-1].id
    if len(found) < limit or state.at >= state.until:
        # The round has ended. The next round begins at the settled id, and may return events of this page again.
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


async def _begin_round(session: AsyncSession, state: _State, window: timedelta) -> None:
    """Begin a round: set `until`, where this round ends, and `settled`, where the following round will begin."""
    state.until = await session.scalar(select(func.max(AssetEvent.id))) or 0
    if session.get_bind().dialect.name == "sqlite":
        # SQLite has one writer at a time, so all transactions that took ids have ended.
        state.settled = state.until
        return
    now = (await database_now(session)).timestamp()
    seconds = window.total_seconds()
    # Once the time of a mark is `window` ago, its id is settled. Marks are at least a quarter of the window apart, so
    # the cursor contains only a few marks.
    if not state.marks or now - state.marks[-1][0] >= seconds / 4:
        state.marks.append((now, state.until))
    settled = [top for at, top in state.marks if at <= now - seconds]
    if settled:
        state.settled = max(state.settled, settled[-1])
        state.marks = state.marks[len(settled) - 1 :]
    del state.marks[:-_MOST_MARKS]


async def _settled_id(session: AsyncSession, window: timedelta) -> int:
    """Wait until the highest id is settled, and return it. This is for a client without a state.

    Returns:
        0 if a transaction with a lower id does not end in time. Then each round repeats all events, until the first of
        the client's `marks` is older than `window`.
    """
    top: int = await session.scalar(select(func.max(AssetEvent.id))) or 0
    if session.get_bind().dialect.name == "sqlite":
        return top
    # Wait only for the transactions that have a lock on the table now. A transaction locks the table before it takes an
    # id, so later transactions take higher ids. A transaction keeps the lock until its events are visible.
    give_up_at = anyio.current_time() + min(window.total_seconds(), _LONGEST_WAIT_S)
    writers = await _writers(session)
    while writers:
        if anyio.current_time() >= give_up_at:
            return 0
        await anyio.sleep(_LOOK_S)
        writers &= await _writers(session)
    return top


async def _writers(session: AsyncSession) -> set[str]:
    """Return the transactions on PostgreSQL that may have written events and have not ended."""
    return set(await session.scalars(_WRITERS))
