"""Lists and deletes the events that wait for DAGs."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, delete, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.dags.listing import DAG_STATES
from triggerer.store.database.wakeups.signals import Signal, announce
from triggerer.store.listing.filters import asset_ids, limited
from triggerer.store.listing.views import QueuedEventView
from triggerer.store.partitions.remapping import return_to_queue
from triggerer.store.schema.models import (
    Asset,
    AssetEvent,
    Dag,
    DagPartitionEvent,
    QueuedAssetEvent,
)


async def list_queued_events(
    session: AsyncSession,
    *,
    limit: int = 100,
    dag: str | None = None,
    asset: str | None = None,
    state: str | None = None,
) -> list[QueuedEventView]:
    """Return the waiting events by DAG, in the order of recording.

    An event that waits for a partitioned DAG has the key of its run once it is divided. It is listed once for each key.

    Args:
        state: The state of the DAG: `active`, `paused` or `stale`.
    """
    of_asset = None if asset is None else await asset_ids(session, asset)
    found: list[QueuedEventView] = []
    for entry, key in (
        (QueuedAssetEvent, AssetEvent.partition_key),
        (DagPartitionEvent, DagPartitionEvent.partition_key),
    ):
        query = (
            select(
                entry.dag_id, Asset.name, Asset.uri, entry.asset_event_id, AssetEvent.timestamp, key
            )
            .join(Asset, Asset.id == entry.asset_id)
            .join(AssetEvent, AssetEvent.id == entry.asset_event_id)
            .where(*_waiting(entry, dag, of_asset))
            .order_by(entry.dag_id, entry.asset_event_id, key)
        )
        if state is not None:
            query = query.join(Dag, Dag.dag_id == entry.dag_id).where(DAG_STATES[state])
        found += [QueuedEventView(*row) for row in await session.execute(limited(query, limit))]
    found.sort(key=lambda one: (one.dag_id, one.asset_event_id, one.partition_key or ""))
    return found[:limit] if limit else found


async def delete_queued_events(
    session: AsyncSession, *, dag: str | None = None, asset: str | None = None
) -> int:
    """Remove waiting events from the queues for good, so that no run takes them; return the number of entries.

    The events themselves stay. A scheduler that plans for one of these DAGs at this moment notices, and plans again.
    """
    of_asset = None if asset is None else await asset_ids(session, asset)
    return await empty_queues(session, dag=dag, assets=of_asset)


async def empty_queues(
    session: AsyncSession, *, dag: str | None = None, assets: Sequence[int] | None = None
) -> int:
    """Do the work of `delete_queued_events` for assets given by id. None: all assets."""
    of_keys = _waiting(DagPartitionEvent, dag, assets)
    keyed = select(DagPartitionEvent.dag_id).where(*of_keys).distinct()
    waiting = _waiting(QueuedAssetEvent, dag, assets)
    queued = select(QueuedAssetEvent.dag_id).where(*waiting).distinct()
    dag_ids = sorted({*(await session.scalars(keyed)), *(await session.scalars(queued))})
    # Sorted, so that two of these cannot deadlock. A planning scheduler locks the row, or checks its version.
    locked = select(Dag.dag_id).where(Dag.dag_id.in_(dag_ids)).order_by(Dag.dag_id)
    await session.execute(locked.with_for_update())
    await session.execute(update(Dag).where(Dag.dag_id.in_(dag_ids)).values(is_stale=Dag.is_stale))
    # Events that wait for keys return to the queue, and the scheduler divides the remaining ones again.
    if remapped := await return_to_queue(session, dag_ids):
        announce(session, Signal.EVENTS_QUEUED, *remapped)
    gone = await session.execute(
        delete(QueuedAssetEvent)
        .where(*waiting, QueuedAssetEvent.dag_id.in_(dag_ids))
        .returning(QueuedAssetEvent.asset_event_id)
    )
    return len(gone.all())


def _waiting(
    entry: type[QueuedAssetEvent] | type[DagPartitionEvent],
    dag: str | None,
    assets: Sequence[int] | None,
) -> list[ColumnElement[bool]]:
    wanted: list[ColumnElement[bool]] = [entry.run_pk.is_(None)]
    if dag is not None:
        wanted.append(entry.dag_id == dag)
    if assets is not None:
        wanted.append(entry.asset_id.in_(assets))
    return wanted
