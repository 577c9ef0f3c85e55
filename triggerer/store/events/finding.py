"""Finds the events of a message by its idempotency key, and the events of a run."""

from __future__ import annotations

from typing import Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.events.listing import list_events_by_id
from triggerer.store.listing.views import AssetEventView
from triggerer.store.schema.models import AssetEvent

MOST: Final = 100
_AFTER_AT_SIGN: Final = chr(ord("@") + 1)


async def find_events(session: AsyncSession, text: str) -> list[AssetEventView]:
    """Return the events whose idempotency key is `text`, or begins with `text` and an at sign; at most 100.

    In the keys of brokers, an at sign separates the message's place from what tells a recreated topic or queue from its
    predecessor. For example, the key of a Kafka message is `topic/partition/offset@topic id`. So `text` may also be
    `topic/partition/offset`.
    """
    key = AssetEvent.idempotency_key
    ids: list[int] = []
    # Each query reads one range of the index that begins with the key. If one query had both conditions and a limit,
    # PostgreSQL might read the whole index in order.
    for condition in (key == text, (key >= f"{text}@") & (key < f"{text}{_AFTER_AT_SIGN}")):
        query = select(AssetEvent.id).where(condition).order_by(key, AssetEvent.watcher_id)
        ids += await session.scalars(query.limit(MOST - len(ids)))
    return await list_events_by_id(session, sorted(ids))


async def find_events_of_run(
    session: AsyncSession, dag_id: str, run_id: str
) -> list[AssetEventView]:
    """Return the first events that a run emitted, at most 100."""
    query = (
        select(AssetEvent.id)
        .where(AssetEvent.source_dag_id == dag_id, AssetEvent.source_run_id == run_id)
        .order_by(AssetEvent.id)
        .limit(MOST)
    )
    return await list_events_by_id(session, list(await session.scalars(query)))
