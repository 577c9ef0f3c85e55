"""Turns broker messages into durable asset events, and asset events into Spark runs.

The public names, flat: `from triggerer import DAG, Asset, AssetWatcher, BaseEventTrigger, task`.
"""

from triggerer.abc import (
    AckTimeout,
    AdvanceItem,
    AdvanceOutcome,
    BaseEventTrigger,
    BaseTrigger,
    SharedStreamProducer,
    SubscriberOverflow,
    TriggerEvent,
    reject_shared_stream_event,
)
from triggerer.domain.assets import Asset, AssetAlias, AssetWatcher, Metadata
from triggerer.domain.conditions import AssetAll, AssetAny
from triggerer.domain.dags import DAG
from triggerer.domain.tasks import task

__all__ = [
    "DAG",
    "AckTimeout",
    "AdvanceItem",
    "AdvanceOutcome",
    "Asset",
    "AssetAlias",
    "AssetAll",
    "AssetAny",
    "AssetWatcher",
    "BaseEventTrigger",
    "BaseTrigger",
    "Metadata",
    "SharedStreamProducer",
    "SubscriberOverflow",
    "TriggerEvent",
    "reject_shared_stream_event",
    "task",
]
