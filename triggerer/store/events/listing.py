"""Reads asset events for the commands and the API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, except_, func, select, union_all
from sqlalchemy.ext.asyncio import AsyncSession

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
_IDS_AT_ONCE: Final = 500
"""The most ids in one statement. Every supported database allows more parameters."""
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

    With the state `unused`, the query may have to read the whole history, or all events of `asset` or `dag`. There is
    no index of the events for which no DAG waited, because each insert of an event would have to maintain it.

    Args:
        after: Only older events, whose ids are lower than this id.
        asset: Only events that were recorded under this name or this URI.
        dag: Only events that the DAG's runs emitted.
        state: `queued`: the event waits for a DAG. `consumed`: the event waited for DAGs, and runs of all these DAGs
            have taken it. `unused`: the event never waited for a DAG. The queries for `queued` and `consumed` are
            slower if many other events are in the queues.
    """
    wanted = await _wanted(session, asset=asset, dag=dag, event_id=event_id, state=state)
    if after is not None:
        wanted.append(AssetEvent.id < after)
    query = _SELECTED.where(*wanted).order_by(AssetEvent.id.desc())
    if state in ("consumed", "unused"):
        rows = await _walk(session, query, wanted, limit, after, are_consumed=state == "consumed")
    else:
        rows = list(await session.execute(limited(query, limit)))
    return [_view(*row) for row in rows]


async def count_asset_events(session: AsyncSession, **filters: Any) -> Count:
    """Count the events that `list_asset_events` returns with these filters."""
    if filters.get("state") in ("consumed", "unused"):
        found = await list_asset_events(session, limit=MOST_COUNTED + 1, **filters)
        return counted(len(found))
    return await count_rows(
        session, select(AssetEvent.id).where(*await _wanted(session, **filters))
    )


async def _wanted(
    session: AsyncSession,
    *,
    asset: str | None = None,
    dag: str | None = None,
    event_id: int | None = None,
    state: str | None = None,
) -> list[ColumnElement[bool]]:
    """Return the conditions for the filters of a list. The states `consumed` and `unused` add none; see `_walk`."""
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

    An event with a lower id than these may become visible later: see `triggerer.store.events.following`.

    Args:
        asset: Only events that were recorded under this name or this URI.
        dag: Only events that the DAG's runs emitted.
    """
    wanted = await _wanted(session, asset=asset, dag=dag)
    query = _SELECTED.where(*wanted, AssetEvent.id > event_id).order_by(AssetEvent.id)
    return [_view(*row) for row in await session.execute(query.limit(limit))]


async def find_event_by_key(session: AsyncSession, key: str, asset_id: int) -> int | None:
    """Return the id of the asset's event with this idempotency key, or None. Events of watchers are ignored."""
    query = select(AssetEvent.id).where(
        AssetEvent.idempotency_key == key,
        AssetEvent.watcher_id == 0,
        AssetEvent.asset_id == asset_id,
    )
    found: int | None = await session.scalar(query.order_by(AssetEvent.id).limit(1))
    return found


async def list_events_by_id(
    session: AsyncSession, event_ids: Sequence[int]
) -> list[AssetEventView]:
    """Return these events, oldest first. Deleted events are left out."""
    found: list[AssetEventView] = []
    for start in range(0, len(event_ids), _IDS_AT_ONCE):
        some = event_ids[start : start + _IDS_AT_ONCE]
        query = _SELECTED.where(AssetEvent.id.in_(some)).order_by(AssetEvent.id)
        found += [_view(*row) for row in await session.execute(query)]
    return found


async def _walk(
    session: AsyncSession,
    query: Select[*tuple[Any, ...]],
    wanted: Sequence[ColumnElement[bool]],
    limit: int,
    after: int | None,
    *,
    are_consumed: bool,
) -> list[Any]:
    """Return the rows of `query` for consumed or unused events, newest first, up to `limit` rows (0: all).

    No index finds the events in these states. So the events are read in windows of ids, and compared with the queue
    entries of each window.

    Args:
        wanted: The other conditions of `query`.
        are_consumed: True for `consumed`, False for `unused` events.
    """
    found: list[Any] = []
    newest = await session.scalar(select(func.max(AssetEvent.id))) or 0
    upper = newest if after is None else min(newest, after - 1)
    width = 1_000
    while not limit or len(found) < limit:
        if are_consumed:
            # Skip the events for which no DAG waited: continue at the newest event that is in the queue.
            upper = await _newest_in_queue(session, upper)
        beyond = select(AssetEvent.id).where(*wanted, AssetEvent.id <= upper)
        window = beyond.order_by(AssetEvent.id.desc()).limit(width).subquery()
        bounds = select(func.count(), func.min(window.c.id), func.max(window.c.id))
        count, lowest, highest = (await session.execute(bounds)).one()
        if not count:
            break
        candidates = beyond.where(AssetEvent.id.between(lowest, highest)).correlate(None)
        in_queue = QueuedAssetEvent.asset_event_id
        # If candidates are few, look up the queue entries of each. Otherwise read all entries in this range of ids.
        are_few = 4 * count < highest - lowest
        entries = select(in_queue).where(
            in_queue.in_(candidates) if are_few else in_queue.between(lowest, highest)
        )
        # EXCEPT is used instead of NOT IN: if PostgreSQL expects many rows, NOT IN compares every pair.
        if are_consumed:
            waiting = union_all(
                entries.where(QueuedAssetEvent.run_pk.is_(None)),
                _FOR_KEYS.where(DagPartitionEvent.asset_event_id.between(lowest, highest)),
            ).subquery()
            is_in_state = except_(
                entries.where(QueuedAssetEvent.run_pk.is_not(None)),
                select(waiting.c.asset_event_id),
            )
        else:
            is_in_state = except_(candidates, entries)
        rows = query.where(AssetEvent.id.between(lowest, highest), AssetEvent.id.in_(is_in_state))
        found += await session.execute(limited(rows, limit and limit - len(found)))
        upper, width = lowest - 1, min(4 * width, _LARGEST_WINDOW)
    return found


async def _newest_in_queue(session: AsyncSession, upper: int) -> int:
    """Return the id of the newest event up to `upper` that is or was in the queue of a DAG, or 0."""
    entry = QueuedAssetEvent.asset_event_id
    return await session.scalar(select(func.max(entry)).where(entry <= upper)) or 0
