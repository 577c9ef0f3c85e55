"""Updates the rows of assets and asset aliases."""

from __future__ import annotations

from collections.abc import Iterable, Set
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.dag_files.merging import AssetKey, Folder
from triggerer.store.dags.sync.differences import assign
from triggerer.store.schema.models import Asset, AssetAlias, AssetEvent, FormerIdentity


async def sync_assets(
    session: AsyncSession, folder: Folder, kept: Set[str], now: datetime
) -> dict[AssetKey, int]:
    """Update the asset rows to match the DAG files; return the ids of all stored assets.

    Args:
        kept: The files whose stored definitions stay for now, for instance because the file is broken.
    """
    rows = {AssetKey(row.name, row.uri): row for row in await session.scalars(select(Asset))}
    await _rename_assets(session, rows, folder.assets.keys(), now)
    for key, (asset, path) in folder.assets.items():
        row = rows.get(key)
        if row is None:
            row = rows[key] = Asset(name=key.name, uri=key.uri, created_at=now)
            session.add(row)
        assign(row, group=asset.group, extra=asset.extra, declared_in=path)
    for key in rows.keys() - folder.assets.keys():
        if rows[key].declared_in not in kept:
            assign(rows[key], declared_in=None)
    await session.flush()
    return {key: row.id for key, row in rows.items()}


async def _rename_assets(
    session: AsyncSession, rows: dict[AssetKey, Asset], wanted: Iterable[AssetKey], now: datetime
) -> None:
    """Rename assets: a new asset takes over an undeclared asset's row, if their names or their URIs are equal.

    An asset is undeclared if no DAG file declares it. The renamed row keeps its watchers, queued events and schedules.
    Events keep the name and URI under which they were recorded.

    - If two new assets match one row, the asset whose name sorts first gets the row.
    - Names and URIs are unique. If another undeclared asset has the new name or URI, that asset is renamed to
      `x-retired:<id>`.
    """
    wanted = set(wanted)
    free = {key: row for key, row in rows.items() if key not in wanted}
    by_name = {key.name: key for key in free}
    by_uri = {key.uri: key for key in free}
    renamed: list[tuple[Asset, AssetKey]] = []
    for key in sorted(wanted - rows.keys()):
        touched = [by_name.get(key.name), by_uri.get(key.uri)]
        old = next((one for one in touched if one in free), None)
        if old is None:
            continue
        renamed.append((free.pop(old), key))
        del rows[old]
    taken = {key.name for _, key in renamed}, {key.uri for _, key in renamed}
    for old, row in free.items():
        if old.name in taken[0] or old.uri in taken[1]:
            retired = f"x-retired:{row.id}"
            renamed.append((row, AssetKey(retired, retired)))
            del rows[old]
    for row, _ in renamed:
        await _record_identity(session, row)
    # Use temporary names first. If two assets swap their URIs, the first direct update would violate a unique key.
    for row, _ in renamed:
        assign(row, name=f"x-renaming:{row.id}", uri=f"x-renaming:{row.id}")
    if renamed:
        await session.flush()
    for row, key in renamed:
        assign(row, name=key.name, uri=key.uri)
        rows[key] = row


async def _record_identity(session: AsyncSession, row: Asset) -> None:
    """Store an asset's name and URI before the asset is renamed, if events were recorded under this name and URI."""
    last = await session.scalar(
        select(func.max(AssetEvent.id)).where(AssetEvent.asset_id == row.id)
    )
    of_asset = FormerIdentity.asset_id == row.id
    covered = await session.scalar(select(func.max(FormerIdentity.last_event_id)).where(of_asset))
    if last is not None and last > (covered or 0):
        session.add(FormerIdentity(asset_id=row.id, last_event_id=last, name=row.name, uri=row.uri))


async def sync_aliases(session: AsyncSession, names: Iterable[str]) -> dict[str, int]:
    """Add missing aliases; return the ids of all aliases. No alias is ever removed."""
    rows = {row.name: row for row in await session.scalars(select(AssetAlias))}
    for name in sorted(set(names) - rows.keys()):
        rows[name] = AssetAlias(name=name)
        session.add(rows[name])
    await session.flush()
    return {name: row.id for name, row in rows.items()}
