"""Turns broker messages into durable asset events, and asset events into Spark runs.

This package exports the names that DAG and plugin authors use. Each name is imported at its first use, so
`import triggerer` costs next to nothing and never loads the store.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from triggerer.domain.authoring.asset_functions import asset
    from triggerer.domain.authoring.spark_tasks import SparkApplication, SparkSql
    from triggerer.domain.conditions import AssetAll, AssetAny
    from triggerer.domain.dags import DAG
    from triggerer.domain.tasks import SkipTask, task
    from triggerer.offset_ranges import kafka_ranges

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
    "SkipTask",
    "SparkApplication",
    "SparkSql",
    "SubscriberOverflow",
    "TriggerEvent",
    "asset",
    "kafka_ranges",
    "reject_shared_stream_event",
    "task",
]

_HOMES = {
    "DAG": "triggerer.domain.dags",
    "Asset": "triggerer.domain.assets",
    "AssetAlias": "triggerer.domain.assets",
    "AssetAll": "triggerer.domain.conditions",
    "AssetAny": "triggerer.domain.conditions",
    "AssetWatcher": "triggerer.domain.assets",
    "Metadata": "triggerer.domain.assets",
    "SkipTask": "triggerer.domain.tasks",
    "SparkApplication": "triggerer.domain.authoring.spark_tasks",
    "SparkSql": "triggerer.domain.authoring.spark_tasks",
    "asset": "triggerer.domain.authoring.asset_functions",
    "kafka_ranges": "triggerer.offset_ranges",
    "task": "triggerer.domain.tasks",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES.get(name, "triggerer.abc")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
