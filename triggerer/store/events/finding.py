"""Finds the events of a message, by its idempotency key or its place, and the events of a run."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Final

from sqlalchemy import ColumnElement, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.events.listing import list_events_by_id
from triggerer.store.listing.views import AssetEventView
from triggerer.store.schema.models import AssetEvent

MOST: Final = 100
_MOST_TOPICS: Final = 20
"""How many topics of one name are searched: the present topic, and deleted ones whose events are still stored."""
_PLACE: Final = re.compile(r"(?P<topic>[^/@]+)/(?P<rest>\d{1,10}/\d{1,18})")


async def find_events(session: AsyncSession, text: str) -> list[AssetEventView]:
    """Return the events of one message, at most 100.

    Args:
        text: The idempotency key, or the part of the key that names the message's place. In the keys of brokers, an at
            sign precedes what tells a recreated topic or queue from its predecessor. A Kafka message has the key
            `topic@topic id/partition/offset`, and is also found by `topic/partition/offset`. With brokers that have no
            topic ids, each key has another text after the at sign, so only the first 20 of a topic are searched.
    """
    key = AssetEvent.idempotency_key
    conditions = [key == text]
    if "/" in text:
        # "A" follows the at sign.
        conditions.append(_is_between(f"{text}@", f"{text}A"))
    if place := _PLACE.fullmatch(text):
        async for beginning in _beginnings(session, place["topic"]):
            found = f"{beginning}/{place['rest']}"
            # The keys of new messages with the offset of a lost one, and of repeated events, end with `+` or `#` and a
            # number. A comma follows both signs, and precedes the digits of longer offsets.
            conditions.append(_is_between(found, f"{found},"))
    ids: list[int] = []
    # Each query reads one range of the index that begins with the key. If one query had several conditions and a limit,
    # PostgreSQL might read the whole index in order.
    for condition in conditions:
        query = select(AssetEvent.id).where(condition).order_by(key, AssetEvent.watcher_id)
        ids += await session.scalars(query.limit(MOST - len(ids)))
    return await list_events_by_id(session, sorted(ids))


async def _beginnings(session: AsyncSession, topic: str) -> AsyncIterator[str]:
    """Yield `topic@topic id` for each topic id that stored events of this topic have, with one query for each."""
    key, begin = AssetEvent.idempotency_key, f"{topic}@"
    for _ in range(_MOST_TOPICS):
        query = select(key).where(_is_between(begin, f"{topic}A")).order_by(key).limit(1)
        if (first := await session.scalar(query)) is None:
            return
        beginning = first.partition("/")[0]
        yield beginning
        # The zero follows the slash, so the next query skips all keys with this beginning.
        begin = f"{beginning}0"


def _is_between(first: str, end: str) -> ColumnElement[bool]:
    """Return whether a key is in this range, without `end`. Keys are sorted by their bytes."""
    return (AssetEvent.idempotency_key >= first) & (AssetEvent.idempotency_key < end)


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
