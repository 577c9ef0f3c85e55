"""Records an event that a person, a program or a task emits, by a command or over HTTP."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.actors import Actor
from triggerer.domain.assets import Asset
from triggerer.domain.text.json_text import dump_json, load_json
from triggerer.errors import KeyReused, UnknownAsset
from triggerer.nearest import ending
from triggerer.operations.audit import Action, record
from triggerer.store.dags.listing import list_assets
from triggerer.store.events.emit import NewAssetEvent, record_events
from triggerer.store.events.listing import find_event_by_key, list_asset_events
from triggerer.store.events.undeclared_assets import ensure_asset
from triggerer.store.listing.views import AssetEventView


@dataclass(frozen=True, slots=True)
class EmittingTask:
    """The run and task that emit an event by HTTP."""

    dag_id: str
    run_id: str
    task_id: str


async def emit_event(
    session: AsyncSession,
    actor: Actor,
    asset: str,
    extra: dict[str, Any],
    *,
    partition_key: str | None = None,
    create: bool = False,
) -> dict[str, Any]:
    """Record one event of the asset with this name or URI, and queue the event for the DAGs that wait for the asset.

    Args:
        create: True: also accept an asset that no DAG file declares, and create the asset if it does not exist.
    Returns:
        The event, as the fields of `AssetEventView`.
    Raises:
        UnknownAsset: No DAG file declares the asset, and `create` is False.
        DagError: No asset has this name, and `asset` is no valid URI.
        RowRefused: The extra or the partition key cannot be stored.
    """
    event, _ = await emit_once(
        session, actor, asset, extra, key=None, partition_key=partition_key, create=create
    )
    return asdict(event)


async def emit_once(
    session: AsyncSession,
    actor: Actor,
    asset: str,
    extra: dict[str, Any],
    *,
    key: str | None,
    partition_key: str | None = None,
    create: bool = False,
    source: EmittingTask | None = None,
) -> tuple[AssetEventView, bool]:
    """Record one event, or find the asset's event that was recorded earlier with this key.

    Args:
        key: The event's idempotency key. None: each call records an event.
        source: The run and task that emit the event. None: the actor emits it.
    Returns:
        The event, and whether it is new.
    Raises:
        KeyReused: The asset has an event with this key but other content.
        Errors of `emit_event`.
    """
    found = await list_assets(session, asset=asset, limit=2)
    exact = [row for row in found if row.uri == asset] or found
    if not create and not (exact and exact[0].declared_in):
        raise await _unknown(session, asset)
    wanted = exact[0] if exact else Asset(asset)
    stored = await ensure_asset(session, name=wanted.name, uri=wanted.uri)
    new = NewAssetEvent(
        stored.id,
        extra,
        idempotency_key=key,
        source_dag_id=None if source is None else source.dag_id,
        source_run_id=None if source is None else source.run_id,
        source_task_id=None if source is None else source.task_id,
        partition_key=partition_key,
    )
    inserted = await record_events(session, [new])
    if not inserted:
        event_id = await find_event_by_key(session, key or "", stored.id)
        (event,) = await list_asset_events(session, event_id=event_id)
        if (event.extra, event.partition_key) != (_as_stored(extra), partition_key):
            raise KeyReused(
                "the asset has an event with this key and other content",
                hint="use a new Idempotency-Key, or a new id of the CloudEvent, for each event",
            )
        return event, False
    (event,) = await list_asset_events(session, event_id=inserted[0])
    # The audit does not repeat the event's extra, because that is users' data.
    after = {"event": event.id, "partition_key": partition_key}
    await record(session, actor, Action.ASSET_EMIT, stored.name, after=after)
    return event, True


def _as_stored(extra: dict[str, Any]) -> Any:
    """Return the extra as the store will return it: for instance, a tuple becomes a list."""
    return load_json(dump_json(extra, "the event's extra"))


async def _unknown(session: AsyncSession, asset: str) -> UnknownAsset:
    declared = await list_assets(session, state="declared", limit=0)
    known = {text for row in declared for text in (row.name, row.uri)}
    return UnknownAsset(
        asset,
        f"no DAG file declares the asset {asset!r}{ending(asset, known)}",
        hint="to emit an event of an undeclared asset, add --create",
    )
