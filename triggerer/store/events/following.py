"""Reads new asset events, for clients that want every event that is recorded from now on.

On PostgreSQL, a transaction with higher event ids may commit before a transaction with lower ids. A client that asked
for the events after its highest known id would miss the lower ids. Therefore a client reads in rounds:

- A round begins at a settled id: every transaction that took this id or a lower id has ended.
- A round ends at the newest event.

So a round may repeat events of earlier rounds, and the client drops the ids that it knows. Delivery is at least once,
and not ordered. A transaction that stays open for long makes the rounds longer, but no event is missed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import anyio
from pydantic import BaseModel, ConfigDict, ValidationError
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.errors import CursorRefused
from triggerer.store.events.listing import events_after
from triggerer.store.listing.paging import Page, decode_cursor, encode_cursor
from triggerer.store.listing.views import AssetEventView
from triggerer.store.schema.models import AssetEvent

_NAME: Final = "asset_events_by_arrival"
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
    mark: int
    """The highest id at an earlier moment. It becomes the settled id once all `writers` have ended."""
    writers: list[str]
    """The transactions that may have taken ids up to `mark`, and had not ended at that moment."""


async def follow_asset_events(
    session: AsyncSession,
    *,
    limit: int = 100,
    after: str | None = None,
    is_from_now: bool = False,
    asset: str | None = None,
    dag: str | None = None,
) -> Page[AssetEventView]:
    """Return the next events, sorted by id, and the cursor of the next page.

    Even a page without events has a cursor, because later events may follow.

    On PostgreSQL, later pages may return events again. The first page waits until the transactions that write events at
    that moment have ended, but for at most two seconds.

    Args:
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
    state = await _begin(session, after, given, is_from_now=is_from_now)
    if not state.until:
        await _begin_round(session, state)
    found = await events_after(session, state.at, limit=limit, **given)
    if found:
        state.at = found[-1].id
    if len(found) < limit or state.at >= state.until:
        # The round has ended. The next round begins at the settled id, and may return events of this page again.
        state.at, state.until = state.settled, 0
    return Page(found, encode_cursor(_NAME, given, state.model_dump(mode="json")))


async def _begin(
    session: AsyncSession,
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
        if max(state.at, state.settled, state.until, state.mark) >= 2**63:
            raise CursorRefused("the cursor is malformed")
        return state
    settled = await _settled_id(session)
    at = settled if is_from_now else 0
    return _State(at=at, settled=settled, until=0, mark=settled, writers=[])


async def _begin_round(session: AsyncSession, state: _State) -> None:
    """Begin a round: set `until`, where this round ends, and `settled`, where the following round will begin."""
    state.until = await session.scalar(select(func.max(AssetEvent.id))) or 0
    if session.get_bind().dialect.name == "sqlite":
        # SQLite has one writer at a time, so all transactions that took ids have ended.
        state.settled = state.until
        return
    # Read the writers after the highest id. A writer that is missing here has ended, so this round reads its events.
    writers = await _writers(session)
    if writers.isdisjoint(state.writers):
        state.settled, state.mark, state.writers = state.mark, state.until, sorted(writers)
    if not writers:
        state.settled = state.until


async def _settled_id(session: AsyncSession) -> int:
    """Wait until the highest id is settled, and return it. This is for a client without a state.

    Returns:
        0 if a transaction with a lower id does not end in time. Then each round repeats all events, until that
        transaction has ended.
    """
    top: int = await session.scalar(select(func.max(AssetEvent.id))) or 0
    if session.get_bind().dialect.name == "sqlite":
        return top
    # Wait only for the transactions that have a lock on the table now. A transaction locks the table before it takes an
    # id, so later transactions take higher ids. A transaction keeps the lock until its events are visible.
    give_up_at = anyio.current_time() + _LONGEST_WAIT_S
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
