"""Reads the stored DAGs, assets and watchers in the form of a parsed folder, to compare them with the DAG files."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.dag_files.merging import AssetKey, Folder
from triggerer.domain.dag_files.parsed import ParsedAsset, ParsedDag, ParsedWatcher, WatcherKey
from triggerer.domain.watchers.parked import ParkedState
from triggerer.store.schema.models import (
    Asset,
    Dag,
    ParkedMessage,
    Stream,
    Trigger,
    Watcher,
    WatcherPosition,
)


@dataclass(frozen=True, slots=True)
class Backlog:
    """The messages that a watcher misses, as far as the store knows them."""

    positions: int = 0
    """If the upstream is a log: the number of lanes where the watcher has a backlog."""
    messages: int = 0
    """If the upstream is a queue: the number of stored messages that wait for the watcher."""


NO_BACKLOG = Backlog()


async def read_stored_folder(session: AsyncSession) -> Folder:
    """Return the DAGs that are not stale, the declared assets, and the watchers, each with its file.

    The store has neither source locations nor `is_paused_upon_creation`. So each `location` is empty, and
    `is_paused_upon_creation` is False.
    """
    dags = await session.scalars(select(Dag).where(~Dag.is_stale).order_by(Dag.dag_id))
    assets = await session.scalars(select(Asset).where(Asset.declared_in.is_not(None)))
    watchers = await session.execute(
        select(Watcher, Asset, Trigger, Stream.key)
        .join(Asset, Asset.id == Watcher.asset_id)
        .join(Trigger, Trigger.id == Watcher.trigger_id)
        .join(Stream, Stream.digest == Trigger.stream_digest)
        .order_by(Asset.name, Watcher.name)
    )
    return Folder(
        dags={row.dag_id: (_dag(row), row.path) for row in dags},
        assets={
            AssetKey(row.name, row.uri): (
                ParsedAsset(row.name, row.uri, row.group, row.extra, ""),
                row.declared_in or "",
            )
            for row in assets
        },
        watchers={
            WatcherKey(asset.name, asset.uri, row.name): (
                _watcher(row, asset, trigger, key),
                row.path,
            )
            for row, asset, trigger, key in watchers
        },
    )


async def backlogs(session: AsyncSession) -> dict[WatcherKey, Backlog]:
    """Return, by watcher, the backlog of each watcher that is behind."""
    rows = await session.execute(
        select(Watcher.id, Asset.name, Asset.uri, Watcher.name)
        .join(Asset, Asset.id == Watcher.asset_id)
        .where(Watcher.trigger_id.is_not(None))
    )
    keys = {watcher_id: WatcherKey(*key) for watcher_id, *key in rows}
    positions = Counter(list(await session.scalars(select(WatcherPosition.watcher_id))))
    kept = await session.execute(
        select(ParkedMessage.watcher_id, func.count())
        .where(ParkedMessage.state == ParkedState.KEPT)
        .group_by(ParkedMessage.watcher_id)
    )
    messages = dict(kept.all())
    return {
        keys[one]: Backlog(positions[one], messages.get(one, 0))
        for one in keys.keys() & {*positions, *messages}
    }


def _dag(row: Dag) -> ParsedDag:
    return ParsedDag(
        dag_id=row.dag_id,
        location="",
        description=row.description,
        tags=row.tags,
        schedule=row.schedule,
        max_active_runs=row.max_active_runs,
        events_per_run=row.events_per_run,
        params=row.params,
        tasks=row.tasks,
        is_paused_upon_creation=False,
        callbacks=row.callbacks,
        start_date=row.start_date,
        end_date=row.end_date,
        catchup=row.catchup,
        min_run_gap=row.min_run_gap,
        quiet_period=row.quiet_period,
        depends_on_past=row.depends_on_past,
        priority=row.priority,
        pools=tuple(row.pools.split(",")) if row.pools else (),
    )


def _watcher(row: Watcher, asset: Asset, trigger: Trigger, stream_key: str) -> ParsedWatcher:
    return ParsedWatcher(
        asset_name=asset.name,
        asset_uri=asset.uri,
        name=row.name,
        location="",
        classpath=trigger.classpath,
        kwargs=trigger.kwargs,
        trigger_digest=trigger.digest,
        stream_digest=trigger.stream_digest,
        stream_key=stream_key,
        guarantee=trigger.guarantee,
    )
