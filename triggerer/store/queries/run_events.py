"""The asset events that a run's tasks look at, by page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import (
    ColumnElement,
    FromClause,
    Select,
    Text,
    and_,
    cast,
    func,
    select,
    type_coerce,
)
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.models import (
    Asset,
    AssetAlias,
    AssetAliasMember,
    AssetEvent,
    QueuedAssetEvent,
    Watcher,
)


@dataclass(frozen=True, slots=True)
class EventSequence:
    """A sequence of asset events that does not change any more, ordered by id."""

    total: int
    last_id: int
    """Events with a greater id came later and are not part of it."""


@dataclass(frozen=True, slots=True)
class TriggeringAsset:
    """An asset that some of a run's triggering events are about."""

    name: str
    uri: str
    total: int
    last_id: int


async def triggering_assets(session: AsyncSession, run_pk: int) -> list[TriggeringAsset]:
    """The assets of a run's triggering events, and how many there are of each; ordered by name."""
    rows = await session.execute(
        select(Asset.name, Asset.uri, func.count(), func.max(QueuedAssetEvent.asset_event_id))
        .join(QueuedAssetEvent, QueuedAssetEvent.asset_id == Asset.id)
        .where(QueuedAssetEvent.run_pk == run_pk)
        .group_by(Asset.name, Asset.uri)
        .order_by(Asset.name)
    )
    return [TriggeringAsset(*row) for row in rows]


async def events_so_far(
    session: AsyncSession, *, uri: str | None = None, alias: str | None = None
) -> EventSequence:
    """How many events an asset, or the assets of an alias, have had until now."""
    total, last_id = (
        await session.execute(
            select(func.count(), func.max(AssetEvent.id))
            .select_from(AssetEvent)
            .where(_about(uri, alias))
        )
    ).one()
    return EventSequence(total, last_id or 0)


async def page_of_asset(
    session: AsyncSession,
    *,
    sequence: EventSequence,
    start: int,
    stop: int,
    uri: str | None = None,
    alias: str | None = None,
) -> list[dict[str, Any]]:
    """Events `start` to `stop` of `sequence`, oldest first."""
    statement = _columns(
        session, AssetEvent.__table__.join(Asset.__table__, Asset.id == AssetEvent.asset_id)
    )
    statement = statement.where(_about(uri, alias), AssetEvent.id <= sequence.last_id)
    return await _page(session, statement, AssetEvent.id, sequence.total, start, stop)


async def page_of_run(
    session: AsyncSession, *, run_pk: int, uri: str, total: int, start: int, stop: int
) -> list[dict[str, Any]]:
    """Events `start` to `stop` of those that triggered a run, for one asset, oldest first."""
    joined = QueuedAssetEvent.__table__.join(
        AssetEvent.__table__, AssetEvent.id == QueuedAssetEvent.asset_event_id
    ).join(Asset.__table__, Asset.id == AssetEvent.asset_id)
    asset_id = select(Asset.id).where(Asset.uri == uri).scalar_subquery()
    statement = _columns(session, joined).where(
        QueuedAssetEvent.run_pk == run_pk, QueuedAssetEvent.asset_id == asset_id
    )
    return await _page(session, statement, QueuedAssetEvent.asset_event_id, total, start, stop)


def _about(uri: str | None, alias: str | None) -> ColumnElement[bool]:
    if alias is None:
        return AssetEvent.asset_id == select(Asset.id).where(Asset.uri == uri).scalar_subquery()
    members = (
        select(AssetAliasMember.asset_id)
        .join(AssetAlias, AssetAlias.id == AssetAliasMember.alias_id)
        .where(AssetAlias.name == alias)
    )
    return and_(AssetEvent.asset_id.in_(members))


def _columns(session: AsyncSession, source: FromClause) -> Select[*tuple[Any, ...]]:
    # `extra` is passed on as the text that it is: reading thousands of them only to write them
    # again would hold up the event loop for longer than all the rest.
    postgresql = session.get_bind().dialect.name == "postgresql"
    extra = cast(AssetEvent.extra, Text) if postgresql else type_coerce(AssetEvent.extra, Text)
    return select(
        AssetEvent.id,
        Asset.name.label("asset_name"),
        Asset.uri.label("asset_uri"),
        extra.label("extra"),
        AssetEvent.timestamp,
        Watcher.name.label("source_watcher"),
        AssetEvent.source_dag_id,
        AssetEvent.source_run_id,
        AssetEvent.source_task_id,
    ).select_from(source.outerjoin(Watcher.__table__, Watcher.id == AssetEvent.watcher_id))


async def _page(
    session: AsyncSession,
    statement: Select[*tuple[Any, ...]],
    order: ColumnElement[int] | Any,
    total: int,
    start: int,
    stop: int,
) -> list[dict[str, Any]]:
    # From the nearer end, so that the last event of a long history costs no more than the first.
    backwards = total - stop < start
    statement = statement.order_by(order.desc() if backwards else order)
    statement = statement.offset(total - stop if backwards else start).limit(stop - start)
    rows = [
        {
            "id": row.id,
            "asset_name": row.asset_name,
            "asset_uri": row.asset_uri,
            "timestamp": row.timestamp,
            "source_watcher": row.source_watcher,
            "source_dag": row.source_dag_id,
            "source_run_id": row.source_run_id,
            "source_task": row.source_task_id,
            "extra": orjson.Fragment(row.extra),
        }
        for row in await session.execute(statement)
    ]
    return rows[::-1] if backwards else rows
