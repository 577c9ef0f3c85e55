"""Describes the guarantee of `KafkaRangeTrigger`, for `triggerer check` and for watchers that demand a guarantee."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from producers.kafka.guarantees import describe_delivery as describe_messages
from triggerer.abc import DeliveryFacts

if TYPE_CHECKING:
    from producers.kafka.settings import KafkaSettings


async def describe_delivery(
    settings: KafkaSettings, topics: Collection[str], *, ask: bool
) -> DeliveryFacts:
    """Return how ranges are delivered. Ranges have no delivery limit and no dead letters."""
    facts = await describe_messages(
        replace(settings, max_deliveries=0),
        topics,
        "of no group",
        ask=ask,
        because="the position is stored in the transaction of the events",
    )
    return replace(
        facts,
        key="the topic's id, partition and first offset",
        source=None,
    )
