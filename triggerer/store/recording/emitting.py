"""Records asset events in the caller's transaction: those of tasks' outlets, and of `assets emit`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import uuid4

from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.assets import Asset as DomainAsset
from triggerer.domain.storable import check_partition_key
from triggerer.errors import AssetConflict
from triggerer.logging_setup import LazyLogger
from triggerer.store.engine.database import database_now, insert_into
from triggerer.store.engine.script import perform
from triggerer.store.models import (
    Asset,
    AssetAliasMember,
    AssetEvent,
    Dag,
    DagScheduleAlias,
    QueuedAssetEvent,
)
from triggerer.store.recording.bulk import EventRow, insert_events
from triggerer.store.recording.encoding import check_identity, encode_extra
from triggerer.store.wakeups.signals import Signal, announce

_log = LazyLogger(__name__)

_MAX_EXTRA_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class NewAssetEvent:
    """An asset event that is to be recorded."""

    asset_id: int
    extra: Mapping[str, Any] = field(default_factory=dict)
    idempotency_key: str | None = None
    """The same key, ordinal and asset are a repeat; None: never a repeat."""
    ordinal: int = 0
    timestamp: datetime | None = None
    """None: the database's time."""
    source_dag_id: str | None = None
    source_run_id: str | None = None
    source_task_id: str | None = None
    alias_ids: tuple[int, ...] = ()
    """The aliases that it was attached to: they resolve to its asset from now on."""
    partition_key: str | None = None


@dataclass(frozen=True, slots=True)
class StoredAsset:
    """The identity of an asset's row."""

    id: int
    name: str
    uri: str


async def record_events(session: AsyncSession, events: Sequence[NewAssetEvent]) -> list[int]:
    """Record events in the caller's transaction, queue them for the DAGs that wait, and announce it.

    Returns:
        The ids of the new events, in the order given; a repeat has none.
    Raises:
        RowRefused: One cannot be stored; let the transaction roll back.
    """
    if not events:
        return []
    now = await database_now(session)
    rows = [_row(event, now) for event in events]
    inserted = await perform(session, insert_events(rows, want_ids=True))
    dag_ids = set(inserted.dag_ids)
    if inserted.event_ids:
        for event, row in zip(events, rows, strict=True):
            if event.alias_ids:
                dag_ids |= await _attach(session, event.alias_ids, row, inserted.event_ids)
    if dag_ids:
        announce(session, Signal.EVENTS_QUEUED, *dag_ids)
    return list(inserted.event_ids)


def _row(event: NewAssetEvent, now: datetime) -> EventRow:
    key = event.idempotency_key if event.idempotency_key is not None else "~" + uuid4().hex
    check_identity(key, event.ordinal)
    if event.partition_key is not None:
        check_partition_key(event.partition_key)
    return EventRow(
        event.asset_id,
        encode_extra(event.extra, max_bytes=_MAX_EXTRA_BYTES),
        event.timestamp or now,
        0,
        key,
        event.ordinal,
        event.partition_key,
        event.source_dag_id,
        event.source_run_id,
        event.source_task_id,
    )


async def _attach(
    session: AsyncSession, alias_ids: Sequence[int], row: EventRow, new_ids: Sequence[int]
) -> set[str]:
    """Resolve the aliases to the event's asset, and queue the event for DAGs that wait for them; return those DAGs."""
    event_id = await session.scalar(
        select(AssetEvent.id).where(
            AssetEvent.watcher_id == row.watcher_id,
            AssetEvent.idempotency_key == row.idempotency_key,
            AssetEvent.ordinal == row.ordinal,
            AssetEvent.asset_id == row.asset_id,
        )
    )
    if event_id is None or event_id not in new_ids:
        # A repeat: this was done the first time.
        return set()
    await session.execute(
        insert_into(session, AssetAliasMember)
        .values([{"alias_id": alias_id, "asset_id": row.asset_id} for alias_id in alias_ids])
        .on_conflict_do_nothing()
    )
    waiting = (
        select(DagScheduleAlias.dag_id)
        .join(Dag, Dag.dag_id == DagScheduleAlias.dag_id)
        .where(DagScheduleAlias.alias_id.in_(alias_ids), ~Dag.is_stale)
        .distinct()
    )
    dag_ids = set(await session.scalars(waiting))
    if dag_ids:
        await session.execute(
            insert_into(session, QueuedAssetEvent)
            .values(
                [
                    {"dag_id": dag_id, "asset_event_id": event_id, "asset_id": row.asset_id}
                    for dag_id in sorted(dag_ids)
                ]
            )
            # A DAG may wait for the asset and for the alias: one entry is enough.
            .on_conflict_do_nothing()
        )
    return dag_ids


async def ensure_asset(
    session: AsyncSession, *, name: str | None = None, uri: str | None = None
) -> StoredAsset:
    """Return the asset of this name and URI; create it, with a warning, if no DAG declares it.

    One of them may be omitted: an existing asset is found by the other; a new one has the other as both.

    Raises:
        AssetConflict: The name belongs to another URI, or the URI to another name.
        DagError: Neither is given, or one is no valid name or URI.
    """
    declared = DomainAsset(uri=uri, name=name)
    found = await _find(session, name and declared.name, uri and declared.uri)
    if found is not None:
        return found
    await session.execute(
        insert_into(session, Asset)
        .values(
            name=declared.name,
            uri=declared.uri,
            group="asset",
            extra={},
            declared_in=None,
            created_at=await database_now(session),
        )
        # Another transaction may be creating it at this moment.
        .on_conflict_do_nothing()
    )
    found = await _find(session, declared.name, declared.uri)
    assert found is not None
    _log.warning("an asset that no DAG declares was created", name=found.name, uri=found.uri)
    return found


async def _find(session: AsyncSession, name: str | None, uri: str | None) -> StoredAsset | None:
    wanted = [column == value for column, value in ((Asset.name, name), (Asset.uri, uri)) if value]
    rows = (
        await session.execute(select(Asset.id, Asset.name, Asset.uri).where(or_(*wanted)))
    ).all()
    if not rows:
        return None
    exact = [row for row in rows if (not name or row.name == name) and (not uri or row.uri == uri)]
    if len(exact) != 1:
        known = ", ".join(f"{row.name!r} is {row.uri!r}" for row in rows)
        raise AssetConflict(f"there is no asset {name!r} with the URI {uri!r}: {known}")
    row = exact[0]
    return StoredAsset(row.id, row.name, row.uri)
