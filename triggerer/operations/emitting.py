"""Records an event that a person, a program or a task emits, by a command or over HTTP."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.actors import Actor
from triggerer.domain.assets import Asset
from triggerer.domain.text.json_text import dump_json, load_json
from triggerer.errors import KeyReused, UnknownAsset
from triggerer.nearest import ending
from triggerer.operations.audit import Action, record_each
from triggerer.store.dags.listing import list_assets
from triggerer.store.events.emit import NewAssetEvent, record_events
from triggerer.store.events.listing import list_events_by_id, list_events_by_key
from triggerer.store.events.undeclared_assets import ensure_asset
from triggerer.store.listing.views import AssetEventView


@dataclass(frozen=True, slots=True)
class Emission:
    """The content of an event to emit."""

    extra: dict[str, Any]
    key: str | None = None
    """The event's idempotency key. None: the event is never a repeat."""
    partition_key: str | None = None


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
    emission = Emission(extra, partition_key=partition_key)
    event, _ = await emit_once(session, actor, asset, emission, create=create)
    return asdict(event)


async def emit_once(
    session: AsyncSession,
    actor: Actor,
    asset: str,
    emission: Emission,
    *,
    create: bool = False,
    source: EmittingTask | None = None,
) -> tuple[AssetEventView, bool]:
    """Record one event, or find the asset's event that was recorded earlier with the event's key.

    Args and errors: as for `emit_all`.
    Returns:
        The event, and whether it is new.
    """
    (recorded,) = await emit_all(session, actor, asset, [emission], create=create, source=source)
    return recorded


async def emit_all(
    session: AsyncSession,
    actor: Actor,
    asset: str,
    emissions: Sequence[Emission],
    *,
    create: bool = False,
    source: EmittingTask | None = None,
) -> list[tuple[AssetEventView, bool]]:
    """Record events of one asset, with a few statements for all of them. Repeats of stored events are not recorded.

    An event is a repeat if the asset has an event with its key, or if an earlier item of `emissions` has its key.

    Args:
        source: The run and task that emit the events. None: the actor emits them.
    Returns:
        For each item of `emissions`, in the given order: the event, and whether it is new.
    Raises:
        KeyReused: An event is a repeat, but has other content. Let the transaction roll back.
        Errors of `emit_event`.
    """
    found = await list_assets(session, asset=asset, limit=2)
    exact = [row for row in found if row.uri == asset] or found
    if not create and not (exact and exact[0].declared_in):
        raise await _unknown(session, asset)
    wanted = exact[0] if exact else Asset(asset)
    stored = await ensure_asset(session, name=wanted.name, uri=wanted.uri)
    events = [
        NewAssetEvent(
            stored.id,
            one.extra,
            idempotency_key=one.key,
            source_dag_id=None if source is None else source.dag_id,
            source_run_id=None if source is None else source.run_id,
            source_task_id=None if source is None else source.task_id,
            partition_key=one.partition_key,
        )
        for one in emissions
    ]
    new = await list_events_by_id(session, await record_events(session, events))
    # The audit does not repeat the events' extras, because they are users' data.
    after = [{"event": event.id, "partition_key": event.partition_key} for event in new]
    await record_each(session, actor, Action.ASSET_EMIT, stored.name, after)
    return await _in_order(session, stored.id, emissions, new)


async def _in_order(
    session: AsyncSession,
    asset_id: int,
    emissions: Sequence[Emission],
    new: Sequence[AssetEventView],
) -> list[tuple[AssetEventView, bool]]:
    """Return the event of each emission, and whether it is new. `new` are the new events in the given order.

    Raises:
        KeyReused: An emission repeats an event that has other content.
    """
    # The first event of `left` belongs to the first emission that is no repeat. Events without a key are always new.
    left = deque(new)
    recorded = [
        left.popleft() if left and left[0].idempotency_key == one.key else None for one in emissions
    ]
    keys = {one.key for one, event in zip(emissions, recorded, strict=True) if event is None}
    known = await list_events_by_key(session, sorted(filter(None, keys)), asset_id)
    by_key = {event.idempotency_key: event for event in known}
    outcomes = []
    for one, event in zip(emissions, recorded, strict=True):
        first = event or by_key[one.key]
        if event is None and (first.extra, first.partition_key) != (
            _as_stored(one.extra),
            one.partition_key,
        ):
            raise KeyReused(
                "the asset has an event with this key and other content",
                hint="use a new Idempotency-Key, or a new id of the CloudEvent, for each event",
            )
        outcomes.append((first, event is not None))
    return outcomes


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
