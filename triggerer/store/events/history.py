"""Reads past events and the assets of aliases, to compute what a scheduler would have decided."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.schema.models import Asset, AssetAlias, AssetAliasMember, AssetEvent


@dataclass(frozen=True, slots=True)
class PastEvent:
    """An event with the current name and URI of its asset."""

    id: int
    name: str
    uri: str
    timestamp: datetime
    partition_key: str | None


async def newest_events(
    session: AsyncSession, *, limit: int, since: datetime | None
) -> list[PastEvent]:
    """Return the newest `limit` events, oldest first, without events older than `since`."""
    newest = select(AssetEvent.id).order_by(AssetEvent.id.desc()).limit(limit)
    query = (
        select(AssetEvent.id, Asset.name, Asset.uri, AssetEvent.timestamp, AssetEvent.partition_key)
        .join(Asset, Asset.id == AssetEvent.asset_id)
        .where(AssetEvent.id.in_(newest))
        .order_by(AssetEvent.id)
    )
    if since is not None:
        query = query.where(AssetEvent.timestamp >= since)
    return [PastEvent(*row) for row in await session.execute(query)]


async def alias_members(session: AsyncSession) -> dict[str, list[tuple[str, str]]]:
    """Return, by alias, the names and URIs of the assets that the alias resolves to."""
    rows = await session.execute(
        select(AssetAlias.name, Asset.name, Asset.uri)
        .join(AssetAliasMember, AssetAliasMember.alias_id == AssetAlias.id)
        .join(Asset, Asset.id == AssetAliasMember.asset_id)
        .order_by(AssetAlias.name, Asset.name)
    )
    found: dict[str, list[tuple[str, str]]] = {}
    for alias, name, uri in rows:
        found.setdefault(alias, []).append((name, uri))
    return found
