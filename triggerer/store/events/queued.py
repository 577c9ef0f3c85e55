"""Lists and deletes the events that wait for DAGs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import (
    ColumnElement,
    Text,
    delete,
    func,
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
    # `QueuedAssetEvent` has an event only once for a DAG, so its entries can be sorted without a partition key.
    (QueuedAssetEvent, literal_column("''", Text)),
    (DagPartitionEvent, DagPartitionEvent.partition_key),
)
"""The two tables of waiting events, each with its column of partition keys.

The events in the first table are not divided among partition keys yet. So the key is the empty
text.
"""


async def list_queued_events(
    session: AsyncSession,
    *,
    limit: int = 100,
    after: tuple[str, int, str] | None = None,
    dag: str | None = None,
    asset: str | None = None,
    state: str | None = None,
) -> list[QueuedEventView]:
    """Return the waiting events, sorted by DAG, then in the order of recording.

    If the scheduler has divided an event among partition keys, the event is listed once for each key.

    Args:
        after: Only entries after this DAG id, event id and partition key. The key is empty for an event that is not
            divided.
        state: The state of the DAG: `active`, `paused` or `stale`.
    """
    of_asset = None if asset is None else await asset_ids(session, asset)
    parts = []
    for entry, key in _ENTRIES:
        # `+ 0` makes PostgreSQL use the index of waiting events. Without `+ 0`, PostgreSQL would read the index of the
        # primary key, which also has all entries that runs have taken.
        number = entry.asset_event_id + 0
        chosen = (
            select(
                entry.dag_id.label("dag_id"),
                number.label("event_id"),
                entry.asset_id.label("asset_id"),
                key.label("key"),
            )
            .where(*_waiting(entry, dag, of_asset))
            .order_by(entry.dag_id, "event_id", "key")
        )
        if state is not None:
            chosen = chosen.join(Dag, Dag.dag_id == entry.dag_id).where(DAG_STATES[state])
        if after is not None:
            chosen = chosen.where(tuple_(entry.dag_id, number, key) > tuple_(*after))
        parts.append(select(limited(chosen, limit).subquery()))
    # The database sorts the rows of both tables, because Python may sort strings differently.
    both = union_all(*parts).subquery()
    first = limited(select(both).order_by(both.c.dag_id, both.c.event_id, both.c.key), limit)
    place = first.subquery().c
    query = (
        select(
            place.dag_id,
            Asset.name,
            Asset.uri,
            place.event_id,
            AssetEvent.timestamp,
            func.coalesce(func.nullif(place.key, ""), AssetEvent.partition_key),
        )
        .join(Asset, Asset.id == place.asset_id)
        .join(AssetEvent, AssetEvent.id == place.event_id)
        .order_by(place.dag_id, place.event_id, place.key)
    )
    return [QueuedEventView(*row) for row in await session.execute(query)]


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
    for entry, _ in _ENTRIES:
        query = select(entry.asset_event_id).where(*_waiting(entry, dag, of_asset))
        if state is not None:
            query = query.join(Dag, Dag.dag_id == entry.dag_id).where(DAG_STATES[state])
        parts.append(select(query.limit(MOST_COUNTED + 1).subquery()))
    return await count_rows(session, select(union_all(*parts).subquery()))


async def delete_queued_events(
    session: AsyncSession, *, dag: str | None = None, asset: str | None = None
) -> int:
    """Remove waiting events from the queues for good, so that no run takes them. Return the number of removed entries.

    The events themselves stay. If a scheduler is planning runs of one of these DAGs, it notices the change and plans
    again.
    """
    of_asset = None if asset is None else await asset_ids(session, asset)
    return await empty_queues(session, dag=dag, assets=of_asset)


async def empty_queues(
    session: AsyncSession, *, dag: str | None = None, assets: Sequence[int] | None = None
) -> int:
    """Remove waiting events as `delete_queued_events` does.

    Args:
        assets: The ids of the assets. None: all assets.
    """
    of_keys = _waiting(DagPartitionEvent, dag, assets)
    keyed = select(DagPartitionEvent.dag_id).where(*of_keys).distinct()
    waiting = _waiting(QueuedAssetEvent, dag, assets)
    queued = select(QueuedAssetEvent.dag_id).where(*waiting).distinct()
    dag_ids = sorted({*(await session.scalars(keyed)), *(await session.scalars(queued))})
    # Lock the DAGs' rows in the order of their ids, so that two such transactions cannot deadlock.
    locked = select(Dag.dag_id).where(Dag.dag_id.in_(dag_ids)).order_by(Dag.dag_id)
    await session.execute(locked.with_for_update())
    # This update changes no value, but gives each row a new version. A scheduler may be planning runs of these DAGs
    # without a lock. Before the scheduler writes, it compares the versions, and so it plans again.
    await session.execute(update(Dag).where(Dag.dag_id.in_(dag_ids)).values(is_stale=Dag.is_stale))
    # Divided events first return to the queue. The scheduler later divides the events that are not removed below.
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
