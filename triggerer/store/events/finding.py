"""Finds the events of a message: by its idempotency key, or by its topic, partition and offset."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.events.listing import list_events_by_id
from triggerer.store.listing.views import AssetEventView
from triggerer.store.schema.models import Asset, AssetEvent, Stream, Trigger, Watcher

MOST: Final = 100
_MOST_ASSETS: Final = 1_000
_PLACE: Final = re.compile(r"(?P<topic>.+)/(?P<partition>\d{1,10})/(?P<offset>\d{1,18})")


async def find_events(session: AsyncSession, text: str) -> list[AssetEventView]:
    """Return the events whose idempotency key is `text`, at most 100.

    If `text` names a Kafka message, as `topic/partition/offset`, the events of this message are returned too. The
    topic's id is taken from the newest event that a watcher made for each asset. So nothing is found if each of these
    events has another topic, or no `topic` in its `extra`. If the topic was deleted and created again, only messages of
    the new topic are found.
    """
    keys = {text}
    if place := _PLACE.fullmatch(text):
        for topic_id in await _topic_ids(session, place["topic"]):
            keys.add(f"{topic_id}/{place['partition']}/{place['offset']}")
    query = (
        select(AssetEvent.id)
        # After a cut (the log lost its end), new messages get the lost offsets again. Their keys end with a plus sign
        # and an epoch.
        .where(
            or_(
                AssetEvent.idempotency_key.in_(keys),
                *(
                    AssetEvent.idempotency_key.between(f"{key}+", f"{key}+~")
                    for key in keys - {text}
                ),
            )
        )
        .order_by(AssetEvent.id)
        .limit(MOST)
    )
    return await list_events_by_id(session, list(await session.scalars(query)))


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


async def _topic_ids(session: AsyncSession, topic: str) -> set[str]:
    assets = await session.scalars(
        select(Watcher.asset_id)
        .distinct()
        .join(Trigger, Trigger.id == Watcher.trigger_id)
        .join(Stream, Stream.digest == Trigger.stream_digest)
        .where(Stream.key.contains(topic, autoescape=True))
        .limit(_MOST_ASSETS)
    )
    # One index look-up for each asset. With GROUP BY, PostgreSQL would read all events of these assets.
    newest_of_asset = select(func.max(AssetEvent.id)).where(
        AssetEvent.asset_id == Asset.id, AssetEvent.watcher_id != 0
    )
    newest = select(newest_of_asset.scalar_subquery()).where(Asset.id.in_(list(assets)))
    rows = await session.execute(
        select(AssetEvent.idempotency_key, AssetEvent.extra).where(AssetEvent.id.in_(newest))
    )
    return {found for key, extra in rows if (found := _topic_id(key, extra, topic)) is not None}


def _topic_id(key: str, extra: Any, topic: str) -> str | None:
    """Return the topic's id in an event's key; None if the event does not come from a message of this topic."""
    if not isinstance(extra, dict) or extra.get("topic") != topic:
        return None
    parts: Sequence[str] = key.rsplit("/", 2)
    return parts[0] if len(parts) == 3 else None
