"""Asset events as the commands show them; see `definitions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, except_, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.models import Asset, AssetEvent, Dag, QueuedAssetEvent, Watcher
from triggerer.store.queries.listing.filters import asset_ids, limited
from triggerer.store.queries.listing.views import AssetEventView, view_of

EVENT_STATES: Final = ("queued", "consumed", "unused")
_LONGEST_STRETCH: Final = 16_000


async def list_asset_events(
    session: AsyncSession,
    *,
    limit: int = 100,
    asset: str | None = None,
    dag: str | None = None,
    event_id: int | None = None,
    state: str | None = None,
) -> list[AssetEventView]:
    """Return events, newest first.

    `unused` may go through all of history, where hardly any is: nothing marks an event that nobody waited for, and a
    mark would be paid for by the insert of each. With `asset` or `dag` it goes through theirs.

    Args:
        dag: Leaves those that the DAG's runs emitted.
        state: `queued`: a DAG still waits to take it into a run. `consumed`: all that waited have. `unused`: none
            did. The first two take as long as there are queued events besides those listed.
    """
    wanted: list[ColumnElement[bool]] = []
    if asset is not None:
        wanted.append(AssetEvent.asset_id.in_(await asset_ids(session, asset)))
    if dag is not None:
        wanted.append(AssetEvent.source_dag_id == dag)
    if event_id is not None:
        wanted.append(AssetEvent.id == event_id)
    if state == "queued":
        waiting = select(QueuedAssetEvent.asset_event_id).where(QueuedAssetEvent.run_pk.is_(None))
        wanted.append(AssetEvent.id.in_(waiting))
    query = (
        select(AssetEvent, Asset.name, Asset.uri, Watcher.name)
        .join(Asset, Asset.id == AssetEvent.asset_id)
        .outerjoin(Watcher, Watcher.id == AssetEvent.watcher_id)
        .where(*wanted)
        .order_by(AssetEvent.id.desc())
    )
    if state in ("consumed", "unused"):
        rows = await _walk(session, query, wanted, limit, are_consumed=state == "consumed")
    else:
        rows = list(await session.execute(limited(query, limit)))
    return [
        view_of(
            event,
            AssetEventView,
            asset_name=asset_name,
            asset_uri=asset_uri,
            source_watcher=watcher,
            idempotency_key=None
            if event.idempotency_key.startswith("~")
            else event.idempotency_key,
        )
        for event, asset_name, asset_uri, watcher in rows
    ]


async def _walk(
    session: AsyncSession,
    query: Select[*tuple[Any, ...]],
    wanted: Sequence[ColumnElement[bool]],
    limit: int,
    *,
    are_consumed: bool,
) -> list[Any]:
    """Return rows of a query for `wanted` events, stretch by stretch from the newest until there are enough."""
    found: list[Any] = []
    dags = await session.scalar(select(func.count()).select_from(Dag)) or 0
    upper = await session.scalar(select(func.max(AssetEvent.id))) or 0
    width = 1_000
    while not limit or len(found) < limit:
        if are_consumed:
            # What nobody waited for is passed over at once.
            upper = await _newest_in_queue(session, upper)
        beyond = select(AssetEvent.id).where(*wanted, AssetEvent.id <= upper)
        stretch = beyond.order_by(AssetEvent.id.desc()).limit(width).subquery()
        bounds = select(func.count(), func.min(stretch.c.id), func.max(stretch.c.id))
        count, lowest, highest = (await session.execute(bounds)).one()
        if not count:
            break
        candidates = beyond.where(AssetEvent.id.between(lowest, highest)).correlate(None)
        in_queue = QueuedAssetEvent.asset_event_id
        # The queue has no index by event alone, which each event would pay for. So a piece of each DAG's entries, or
        # each DAG's entry of each candidate, whichever is less to look at.
        are_few = count * dags < highest - lowest
        entries = select(in_queue).where(
            QueuedAssetEvent.dag_id.in_(select(Dag.dag_id)),
            in_queue.in_(candidates) if are_few else in_queue.between(lowest, highest),
        )
        # Not by NOT IN, which on PostgreSQL compares each with each where it expects many.
        if are_consumed:
            is_in_state = except_(
                entries.where(QueuedAssetEvent.run_pk.is_not(None)),
                entries.where(QueuedAssetEvent.run_pk.is_(None)),
            )
        else:
            is_in_state = except_(candidates, entries)
        rows = query.where(AssetEvent.id.between(lowest, highest), AssetEvent.id.in_(is_in_state))
        found += await session.execute(limited(rows, limit and limit - len(found)))
        upper, width = lowest - 1, min(4 * width, _LONGEST_STRETCH)
    return found


async def _newest_in_queue(session: AsyncSession, upper: int) -> int:
    """The newest event, up to this one, for which a DAG waits or has waited; 0: there is none."""
    of_dag = (
        select(func.max(QueuedAssetEvent.asset_event_id))
        .where(QueuedAssetEvent.dag_id == Dag.dag_id, QueuedAssetEvent.asset_event_id <= upper)
        .correlate(Dag)
        .scalar_subquery()
    )
    return await session.scalar(select(func.max(of_dag)).select_from(Dag)) or 0
