"""Emits an event by hand."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.actors import Actor
from triggerer.domain.assets import Asset
from triggerer.errors import UnknownAsset
from triggerer.nearest import ending
from triggerer.operations.audit import Action, record
from triggerer.store.dags.listing import list_assets
from triggerer.store.events.emit import NewAssetEvent, record_events
from triggerer.store.events.listing import list_asset_events
from triggerer.store.events.undeclared_assets import ensure_asset


async def emit_event(
    session: AsyncSession,
    actor: Actor,
    asset: str,
    extra: dict[str, Any],
    *,
    partition_key: str | None = None,
    create: bool = False,
) -> dict[str, Any]:
    """Record one event of the asset with this name or URI, and queue it for the DAGs that wait.

    Args:
        create: True to accept an asset that no DAG file declares, and to create it if it does not exist.
    Returns:
        The event, with the field names of the contract's §9.
    Raises:
        UnknownAsset: No DAG file declares the asset, and `create` is False.
        DagError: No asset has this name, and it is not a valid URI either.
        RowRefused: The extra or the partition key cannot be stored.
    """
    found = await list_assets(session, asset=asset, limit=2)
    exact = [row for row in found if row.uri == asset] or found
    if not create and not (exact and exact[0].declared_in):
        raise await _unknown(session, asset)
    wanted = exact[0] if exact else Asset(asset)
    stored = await ensure_asset(session, name=wanted.name, uri=wanted.uri)
    (event_id,) = await record_events(
        session, [NewAssetEvent(stored.id, extra, partition_key=partition_key)]
    )
    (event,) = await list_asset_events(session, event_id=event_id)
    # The event itself has the extra, which is users' data.
    after = {"event": event_id, "partition_key": partition_key}
    await record(session, actor, Action.ASSET_EMIT, stored.name, after=after)
    return asdict(event)


async def _unknown(session: AsyncSession, asset: str) -> UnknownAsset:
    declared = await list_assets(session, state="declared", limit=0)
    known = {text for row in declared for text in (row.name, row.uri)}
    return UnknownAsset(
        asset,
        f"no DAG file declares the asset {asset!r}{ending(asset, known)}",
        hint="to emit an event of an undeclared asset, add --create",
    )
