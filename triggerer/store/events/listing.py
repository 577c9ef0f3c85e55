"""Reads asset events for the commands and the API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, except_, func, select, union_all
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from triggerer.store.database.listed_ids import is_listed, plan_with_values
from triggerer.store.events.identities import NAME, URI, in_spans, spans_of, with_identity
from triggerer.store.listing.filters import limited
from triggerer.store.listing.paging import MOST_COUNTED, Count, count_rows, counted
from triggerer.store.listing.views import AssetEventView, view_of
from triggerer.store.schema.models import (
    AssetEvent,
    DagPartitionEvent,
    QueuedAssetEvent,
    Watcher,
)

EVENT_STATES: Final = ("queued", "consumed", "unused")
_LARGEST_WINDOW: Final = 16_000
_VALUES_AT_ONCE: Final = 500
"""The most ids or keys in one statement. Every supported database allows more parameters."""
_FOR_KEYS: Final = select(DagPartitionEvent.asset_event_id).where(
    DagPartitionEvent.run_pk.is_(None)
)
"""The events that wait for the runs of partition keys."""
_SELECTED: Final = with_identity(select(AssetEvent, NAME, URI, Watcher.name)).outerjoin(
    Watcher, Watcher.id == AssetEvent.watcher_id
)


async def list_asset_events(
    session: AsyncSession,
    *,
    limit: int = 100,
    after: int | None = None,
    asset: str | None = None,
    dag: str | None = None,
    event_id: int | None = None,
    state: str | None = None,
) -> list[AssetEventView]:
    """Return events, newest first.

    The state `unused` may require reading the whole history, or all events of `asset` or `dag`. An index of unused
    events would slow down each insert of an event, so there is none.

    Args:
        after: Only older events, whose ids are lower than this id.
        asset: Only events that were recorded under this name or this URI.
        dag: Only events that the DAG's runs emitted.
        state: `queued`: the event waits for a DAG. `consumed`: the event waited for DAGs, and runs of all these DAGs
            have taken it. `unused`: the event never waited for a DAG.
    """
    wanted = await _wanted(session, asset=asset, dag=dag, event_id=event_id, state=state)
    if after is not None:
        wanted.append(AssetEvent.id < after)
    if state in ("consumed", "unused"):
        ids = await _ids_in_state(session, wanted, limit, after, are_consumed=state == "consumed")
        return (await list_events_by_id(session, ids[::-1]))[::-1]
    query = _SELECTED.where(*wanted).order_by(AssetEvent.id.desc())
    return [_view(*row) for row in await session.execute(limited(query, limit))]


async def count_asset_events(session: AsyncSession, **filters: Any) -> Count:
    """Count the events that `list_asset_events` returns with these filters."""
    wanted = await _wanted(session, **filters)
    state = filters.get("state")
    if state in ("consumed", "unused"):
        ids = await _ids_in_state(
            session, wanted, MOST_COUNTED + 1, are_consumed=state == "consumed"
        )
        return counted(len(ids))
    return await count_rows(session, select(AssetEvent.id).where(*wanted))


async def _wanted(
    session: AsyncSession,
    *,
    asset: str | None = None,
    dag: str | None = None,
    event_id: int | None = None,
    state: str | None = None,
) -> list[ColumnElement[bool]]:
    """Return the conditions for the filters of a list. `consumed` and `unused` add none; see `_ids_in_state`."""
    wanted: list[ColumnElement[bool]] = []
    if asset is not None:
        wanted.append(in_spans(await spans_of(session, uri=asset, name=asset)))
    if dag is not None:
        wanted.append(AssetEvent.source_dag_id == dag)
    if event_id is not None:
        wanted.append(AssetEvent.id == event_id)
    if state == "queued":
        waiting = select(QueuedAssetEvent.asset_event_id).where(QueuedAssetEvent.run_pk.is_(None))
        wanted.append(AssetEvent.id.in_(union_all(waiting, _FOR_KEYS)))
    return wanted


def _view(
    event: AssetEvent, asset_name: str, asset_uri: str, watcher: str | None
) -> AssetEventView:
    key = event.idempotency_key
    return view_of(
        event,
        AssetEventView,
        asset_name=asset_name,
        asset_uri=asset_uri,
        source_watcher=watcher,
        idempotency_key=None if key.startswith("~") else key,
    )


async def events_after(
    session: AsyncSession,
    event_id: int,
    *,
    limit: int,
    asset: str | None = None,
    dag: str | None = None,
) -> list[AssetEventView]:
    """Return the events with ids above `event_id`, lowest first.

    On PostgreSQL, events with lower ids may become visible later: see `triggerer.store.events.following`.

    Args:
        asset: Only events that were recorded under this name or this URI.
        dag: Only events that the DAG's runs emitted.
    """
    wanted = await _wanted(session, asset=asset, dag=dag)
    query = _SELECTED.where(*wanted, AssetEvent.id > event_id).order_by(AssetEvent.id)
    return [_view(*row) for row in await session.execute(query.limit(limit))]


async def list_events_by_key(
    session: AsyncSession, keys: Sequence[str], asset_id: int
) -> list[AssetEventView]:
    """Return the asset's events with these idempotency keys. Events of watchers are ignored.

    If a task emitted several events with one key, only the first of them is returned.
    """
    wanted = (AssetEvent.watcher_id == 0, AssetEvent.asset_id == asset_id, AssetEvent.ordinal == 0)
    return await _list_in(session, AssetEvent.idempotency_key, keys, *wanted)


async def list_events_by_id(
    session: AsyncSession, event_ids: Sequence[int]
) -> list[AssetEventView]:
    """Return these events, oldest first. Deleted events are left out.

    Args:
        event_ids: In ascending order.
    """
    return await _list_in(session, AssetEvent.id, event_ids)


async def _list_in(
    session: AsyncSession,
    column: InstrumentedAttribute[Any],
    values: Sequence[Any],
    *wanted: ColumnElement[bool],
) -> list[AssetEventView]:
    """Return the events whose column has one of these values, sorted by id within each statement."""
    found: list[AssetEventView] = []
    for start in range(0, len(values), _VALUES_AT_ONCE):
        some = values[start : start + _VALUES_AT_ONCE]
        query = _SELECTED.where(column.in_(some), *wanted).order_by(AssetEvent.id)
        found += [_view(*row) for row in await session.execute(query)]
    return found


async def _ids_in_state(
    session: AsyncSession,
    wanted: Sequence[ColumnElement[bool]],
    limit: int,
    after: int | None = None,
    *,
    are_consumed: bool,
) -> list[int]:
    """Return the ids of consumed or unused events, highest first, up to `limit` ids (0: all).

    No index finds these events. So this function reads windows of ids, and compares the events with the queue entries.

    Args:
        wanted: The other conditions for the events.
        after: Return only ids below this id. None: all ids.
        are_consumed: True for `consumed`, False for `unused` events.
    """
    found: list[int] = []
    newest = await session.scalar(select(func.max(AssetEvent.id))) or 0
    upper = newest if after is None else min(newest, after - 1)
    width = 1_000
    await plan_with_values(session)
    while not limit or len(found) < limit:
        if are_consumed:
            # Skip the events for which no DAG waited: continue at the newest event that is in the queue.
            upper = await _newest_in_queue(session, upper)
        events = select(AssetEvent.id).where(*wanted)
        window = events.where(AssetEvent.id <= upper).order_by(AssetEvent.id.desc()).limit(width)
        candidates = list(await session.scalars(window))
        if not candidates:
            break
        highest, lowest = candidates[0], candidates[-1]
        in_queue = QueuedAssetEvent.asset_event_id
        # For few candidates, look up the queue entries of each. Otherwise read all entries in this range of ids.
        are_few = 4 * len(candidates) < highest - lowest
        entries = select(in_queue).where(
            is_listed(session, in_queue, candidates)
            if are_few
            else in_queue.between(lowest, highest)
        )
        # EXCEPT is used instead of NOT IN: if PostgreSQL expects many rows, NOT IN compares every pair.
        if are_consumed:
            waiting = union_all(
                entries.where(QueuedAssetEvent.run_pk.is_(None)),
                _FOR_KEYS.where(DagPartitionEvent.asset_event_id.between(lowest, highest)),
            ).subquery()
            taken = entries.where(QueuedAssetEvent.run_pk.is_not(None))
            are_in_state = except_(taken, select(waiting.c.asset_event_id))
        else:
            are_in_state = except_(events.where(AssetEvent.id.between(lowest, highest)), entries)
        in_state = set(await session.scalars(are_in_state))
        found += [event_id for event_id in candidates if event_id in in_state]
        upper, width = lowest - 1, min(4 * width, _LARGEST_WINDOW)
    return found[:limit] if limit else found


async def _newest_in_queue(session: AsyncSession, upper: int) -> int:
    """Return the id of the newest event up to `upper` that is or was in the queue of a DAG, or 0."""
    entry = QueuedAssetEvent.asset_event_id
    return await session.scalar(select(func.max(entry)).where(entry <= upper)) or 0
