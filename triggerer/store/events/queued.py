"""Lists and deletes the events that wait for DAGs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import (
    ColumnElement,
    Text,
    delete,
    literal_column,
    select,
    tuple_,
    union_all,
    update,
)
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.dags.listing import DAG_STATES
from triggerer.store.database.wakeups.signals import Signal, announce
from triggerer.store.listing.filters import asset_ids, limited
from triggerer.store.listing.paging import MOST_COUNTED, Count, count_rows
from triggerer.store.listing.views import QueuedEventView
from triggerer.store.partitions.remapping import return_to_queue
from triggerer.store.schema.models import (
    Asset,
    AssetEvent,
    Dag,
    DagPartitionEvent,
    QueuedAssetEvent,
)

_ENTRIES: Final = (
    # An event is once in the queue of a DAG, so the key tells nothing about its place.
    (QueuedAssetEvent, AssetEvent.partition_key, literal_column("''", Text)),
    (DagPartitionEvent, DagPartitionEvent.partition_key, DagPartitionEvent.partition_key),
)
"""The tables of waiting events, each with the column of its partition key, and the part of the key in the order."""


async def list_queued_events(
    session: AsyncSession,
    *,
    limit: int = 100,
    after: tuple[str, int, str] | None = None,
    dag: str | None = None,
    asset: str | None = None,
    state: str | None = None,
) -> list[QueuedEventView]:
    """Return the waiting events by DAG, in the order of recording.

    An event that waits for a partitioned DAG has the key of its run once it is divided. It is listed once for each key.

    Args:
        after: Only entries after this DAG id, event id and partition key (empty: in the queue itself).
        state: The state of the DAG: `active`, `paused` or `stale`.
    """
    of_asset = None if asset is None else await asset_ids(session, asset)
    parts = []
    for entry, key, key_place in _ENTRIES:
        place = (entry.dag_id, entry.asset_event_id, key_place)
        query = (
            select(
                entry.dag_id.label("dag_id"),
                Asset.name,
                Asset.uri,
                entry.asset_event_id.label("asset_event_id"),
                AssetEvent.timestamp,
                key.label("partition_key"),
                key_place.label("place"),
            )
            .select_from(entry)
            .join(Asset, Asset.id == entry.asset_id)
            .join(AssetEvent, AssetEvent.id == entry.asset_event_id)
            .where(*_waiting(entry, dag, of_asset))
            .order_by(entry.dag_id, entry.asset_event_id, "place")
        )
        if state is not None:
            query = query.join(Dag, Dag.dag_id == entry.dag_id).where(DAG_STATES[state])
        if after is not None:
            query = query.where(tuple_(*place) > tuple_(*after))
        parts.append(select(limited(query, limit).subquery()))
    # The database sorts both tables together, because the order of its texts is not Python's.
    both = union_all(*parts).subquery()
    query = select(both).order_by(both.c.dag_id, both.c.asset_event_id, both.c.place)
    rows = await session.execute(limited(query, limit))
    return [QueuedEventView(*row[:-1]) for row in rows]


async def count_queued_events(
    session: AsyncSession,
    *,
    dag: str | None = None,
    asset: str | None = None,
    state: str | None = None,
) -> Count:
    """Count the entries that `list_queued_events` returns with these filters."""
    of_asset = None if asset is None else await asset_ids(session, asset)
    parts = []
    for entry, *_ in _ENTRIES:
        query = select(entry.asset_event_id).where(*_waiting(entry, dag, of_asset))
        if state is not None:
            query = query.join(Dag, Dag.dag_id == entry.dag_id).where(DAG_STATES[state])
        parts.append(select(query.limit(MOST_COUNTED + 1).subquery()))
    return await count_rows(session, select(union_all(*parts).subquery()))


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
