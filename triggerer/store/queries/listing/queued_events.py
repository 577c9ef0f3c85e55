"""The events that wait for DAGs: looked at, and deleted."""

from __future__ import annotations

from sqlalchemy import ColumnElement, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.models import Asset, AssetEvent, Dag, QueuedAssetEvent
from triggerer.store.queries.listing.filters import asset_ids, limited
from triggerer.store.queries.listing.views import QueuedEventView


async def list_queued_events(
    session: AsyncSession, *, limit: int = 100, dag: str | None = None, asset: str | None = None
) -> list[QueuedEventView]:
    """Return what waits, by DAG, and in the order in which it was recorded."""
    query = (
        select(
            QueuedAssetEvent.dag_id,
            Asset.name,
            Asset.uri,
            QueuedAssetEvent.asset_event_id,
            AssetEvent.timestamp,
            AssetEvent.partition_key,
        )
        .join(Asset, Asset.id == QueuedAssetEvent.asset_id)
        .join(AssetEvent, AssetEvent.id == QueuedAssetEvent.asset_event_id)
        .where(*await _waiting(session, dag, asset))
        .order_by(QueuedAssetEvent.dag_id, QueuedAssetEvent.asset_event_id)
    )
    rows = await session.execute(limited(query, limit))
    return [QueuedEventView(*row) for row in rows]


async def count_queued(session: AsyncSession) -> dict[str, dict[tuple[str, str], int]]:
    """Return, by DAG, how many events of each asset (name, URI) wait for it; DAGs for which none waits are left out."""
    rows = await session.execute(
        select(QueuedAssetEvent.dag_id, Asset.name, Asset.uri, func.count())
        .join(Asset, Asset.id == QueuedAssetEvent.asset_id)
        .where(QueuedAssetEvent.run_pk.is_(None))
        .group_by(QueuedAssetEvent.dag_id, Asset.name, Asset.uri)
    )
    found: dict[str, dict[tuple[str, str], int]] = {}
    for dag_id, name, uri, count in rows:
        found.setdefault(dag_id, {})[name, uri] = count
    return found


async def delete_queued_events(
    session: AsyncSession, *, dag: str | None = None, asset: str | None = None
) -> int:
    """Take what waits out of the queues, for good: no run will get it. Return how many entries that were.

    The events themselves stay. A scheduler that is planning for one of these DAGs notices: it plans anew.
    """
    waiting = await _waiting(session, dag, asset)
    dag_ids = (
        await session.scalars(select(QueuedAssetEvent.dag_id).where(*waiting).distinct())
    ).all()
    # Sorted, so that two of these cannot deadlock. Whoever plans locks the row, or goes by its version.
    locked = select(Dag.dag_id).where(Dag.dag_id.in_(dag_ids)).order_by(Dag.dag_id)
    await session.execute(locked.with_for_update())
    await session.execute(update(Dag).where(Dag.dag_id.in_(dag_ids)).values(is_stale=Dag.is_stale))
    gone = await session.execute(
        delete(QueuedAssetEvent)
        .where(*waiting, QueuedAssetEvent.dag_id.in_(dag_ids))
        .returning(QueuedAssetEvent.asset_event_id)
    )
    return len(gone.all())


async def _waiting(
    session: AsyncSession, dag: str | None, asset: str | None
) -> list[ColumnElement[bool]]:
    wanted: list[ColumnElement[bool]] = [QueuedAssetEvent.run_pk.is_(None)]
    if dag is not None:
        wanted.append(QueuedAssetEvent.dag_id == dag)
    if asset is not None:
        wanted.append(QueuedAssetEvent.asset_id.in_(await asset_ids(session, asset)))
    return wanted
