"""Deletes an asset that no DAG file declares: first its events, a few thousand rows at a time, then its own row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import delete, exists, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.runs import RunState
from triggerer.store.schema.models import (
    Asset,
    AssetAliasMember,
    AssetEvent,
    Dag,
    DagPartitionEvent,
    DagPartitionPart,
    DagRun,
    DagScheduleAsset,
    FormerIdentity,
    ParkedMessage,
    QueuedAssetEvent,
    Watcher,
    WatcherBookmark,
    WatcherPosition,
    WatcherReplay,
)

_ENTRIES: Final = (QueuedAssetEvent, DagPartitionEvent)


@dataclass(frozen=True, slots=True)
class AssetUse:
    """The objects that use an asset. They prevent its deletion, except waiting events (see `queued`)."""

    declared_in: str | None
    """The DAG file that declares the asset."""
    dag_id: str | None
    """A DAG that waits for the asset and is not stale."""
    watcher: str | None
    """A watcher of the asset. Deleted watchers do not count."""
    run: tuple[str, str] | None
    """An unfinished run (DAG, run id) that has some of the asset's events."""
    parked: tuple[str, int] | None
    """A watcher that has stored or parked messages, and their number. The watcher may be deleted already."""
    queued: int
    """The asset's waiting events, counted once for each DAG and each partition key that they wait for.

    An operator can delete an asset together with its waiting events.
    """


async def use_of_asset(session: AsyncSession, asset_id: int) -> AssetUse | None:
    """Lock an asset's row for the transaction; return the objects that use the asset, or None if it does not exist."""
    query = select(Asset.declared_in).where(Asset.id == asset_id).with_for_update()
    found = (await session.execute(query)).one_or_none()
    if found is None:
        return None
    dag_id = await session.scalar(
        select(Dag.dag_id)
        .join(DagScheduleAsset, DagScheduleAsset.dag_id == Dag.dag_id)
        .where(DagScheduleAsset.asset_id == asset_id, ~Dag.is_stale)
        .limit(1)
    )
    watcher = await session.scalar(
        select(Watcher.name)
        .where(Watcher.asset_id == asset_id, Watcher.trigger_id.is_not(None))
        .limit(1)
    )
    parked = (
        await session.execute(
            select(Watcher.name, func.count())
            .join(ParkedMessage, ParkedMessage.watcher_id == Watcher.id)
            .where(Watcher.asset_id == asset_id)
            .group_by(Watcher.name)
            .limit(1)
        )
    ).one_or_none()
    return AssetUse(
        found.declared_in,
        dag_id,
        watcher,
        await _unfinished_run(session, asset_id),
        None if parked is None else (parked[0], parked[1]),
        await _queued(session, asset_id),
    )


async def _unfinished_run(session: AsyncSession, asset_id: int) -> tuple[str, str] | None:
    unfinished = DagRun.state.in_((RunState.QUEUED, RunState.RUNNING))
    for entry in _ENTRIES:
        query = select(DagRun.dag_id, DagRun.run_id).where(
            unfinished, exists().where(entry.run_pk == DagRun.id, entry.asset_id == asset_id)
        )
        if row := (await session.execute(query.limit(1))).one_or_none():
            return row.dag_id, row.run_id
    return None


async def find_asset(session: AsyncSession, asset: str) -> tuple[int, str, str] | None:
    """Look an asset up by its URI, then by its name. Return its id, name and URI, or None if there is no such asset."""
    for column in (Asset.uri, Asset.name):
        query = select(Asset.id, Asset.name, Asset.uri).where(column == asset)
        if row := (await session.execute(query)).one_or_none():
            return row.id, row.name, row.uri
    return None


async def _queued(session: AsyncSession, asset_id: int) -> int:
    """Count the entries for `AssetUse.queued`.

    The indexes of waiting events begin with the DAG's id. So the query joins the DAGs, and the database searches an
    index once for each DAG.
    """
    waiting = 0
    for entry in _ENTRIES:
        query = (
            select(func.count())
            .select_from(Dag)
            .join(entry, entry.dag_id == Dag.dag_id)
            .where(entry.asset_id == asset_id, entry.run_pk.is_(None))
        )
        waiting += await session.scalar(query) or 0
    return waiting


async def delete_some_events(session: AsyncSession, asset_id: int, *, limit: int) -> int:
    """Delete the next `limit` events of an asset with their queue entries. Return how many events were deleted."""
    found = await session.scalars(
        select(AssetEvent.id)
        .where(AssetEvent.asset_id == asset_id)
        .order_by(AssetEvent.id)
        .limit(limit)
    )
    if not (event_ids := list(found)):
        return 0
    for entry in _ENTRIES:
        await session.execute(delete(entry).where(entry.asset_event_id.in_(event_ids)))
    await session.execute(delete(AssetEvent).where(AssetEvent.id.in_(event_ids)))
    return len(event_ids)


async def delete_asset_row(session: AsyncSession, asset_id: int) -> None:
    """Delete an asset's row and its watchers, and remove the asset from aliases and from the schedules of stale DAGs.

    The asset must have no events left.
    """
    watchers = select(Watcher.id).where(Watcher.asset_id == asset_id)
    for of_watcher in (WatcherBookmark, WatcherPosition, WatcherReplay):
        await session.execute(delete(of_watcher).where(of_watcher.watcher_id.in_(watchers)))
    for of_asset in (
        Watcher,
        AssetAliasMember,
        DagScheduleAsset,
        DagPartitionPart,
        FormerIdentity,
    ):
        await session.execute(delete(of_asset).where(of_asset.asset_id == asset_id))
    await session.execute(delete(Asset).where(Asset.id == asset_id))
