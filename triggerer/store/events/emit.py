"""Records the asset events that do not come from watchers, but from tasks, the command `assets emit` or the API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any
from uuid import uuid4

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.text.storable import check_partition_key
from triggerer.observability.metrics.table import EVENTS_RECORDED
from triggerer.store.database.script import perform
from triggerer.store.database.transactions import count_on_commit, database_now
from triggerer.store.database.wakeups.signals import Signal, announce
from triggerer.store.events.alias_attachment import attach_events
from triggerer.store.events.bulk_insert import EventRow, insert_events
from triggerer.store.events.encoding import check_identity, encode_extra

_MAX_EXTRA_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class NewAssetEvent:
    """An asset event to record."""

    asset_id: int
    extra: Mapping[str, Any] = field(default_factory=dict)
    idempotency_key: str | None = None
    """If an event with this key, ordinal and asset is stored already, the new event is dropped as a duplicate.

    None: the event is never a duplicate."""
    ordinal: int = 0
    timestamp: datetime | None = None
    """None: the database's time."""
    source_dag_id: str | None = None
    source_run_id: str | None = None
    source_task_id: str | None = None
    alias_ids: tuple[int, ...] = ()
    """The aliases to which the event is attached. The event's asset is added to these aliases."""
    partition_key: str | None = None


async def record_events(session: AsyncSession, events: Sequence[NewAssetEvent]) -> list[int]:
    """Record events in the caller's transaction, queue them for the DAGs that wait, and announce them.

    Returns:
        The ids of the new events, in the given order. An event that was recorded before has no id here.
    Raises:
        RowRefused: An event cannot be stored. Let the transaction roll back.
    """
    if not events:
        return []
    now = await database_now(session)
    rows = [_row(event, now) for event in events]
    inserted = await perform(session, insert_events(rows, want_ids=True))
    dag_ids = set(inserted.dag_ids)
    if inserted.event_ids and any(event.alias_ids for event in events):
        aliases = [event.alias_ids for event in events]
        dag_ids |= await perform(session, attach_events(rows, aliases, inserted.event_ids))
    if dag_ids:
        announce(session, Signal.EVENTS_QUEUED, *dag_ids)
    count = len(inserted.event_ids)
    if count:
        source = "request" if events[0].source_dag_id is None else "task"
        count_on_commit(session, partial(EVENTS_RECORDED.add, count, source))
    return list(inserted.event_ids)


def _row(event: NewAssetEvent, now: datetime) -> EventRow:
    key = event.idempotency_key if event.idempotency_key is not None else "~" + uuid4().hex
    check_identity(key, event.ordinal)
    if event.partition_key is not None:
        check_partition_key(event.partition_key)
    return EventRow(
        event.asset_id,
        encode_extra(event.extra, max_bytes=_MAX_EXTRA_BYTES, what="the event's extra"),
        event.timestamp or now,
        0,
        key,
        event.ordinal,
        event.partition_key,
        event.source_dag_id,
        event.source_run_id,
        event.source_task_id,
    )
