"""The tables, one module per aggregate."""

from triggerer.store.models.assets import (
    Asset,
    AssetAlias,
    AssetAliasMember,
    AssetEvent,
    FormerIdentity,
    QueuedAssetEvent,
)
from triggerer.store.models.backfills import Backfill, BackfillInterval, BackfillKey
from triggerer.store.models.base import Base
from triggerer.store.models.dags import Dag, DagFile, DagScheduleAlias, DagScheduleAsset
from triggerer.store.models.parked import ParkedBody, ParkedMessage
from triggerer.store.models.partitions import DagPartition, DagPartitionEvent, DagPartitionPart
from triggerer.store.models.positions import WatcherPosition, WatcherReplay
from triggerer.store.models.runs import DagRun, TaskRun
from triggerer.store.models.stream_states import StreamState
from triggerer.store.models.triggers import Instance, Stream, Trigger, Watcher

__all__ = [
    "Asset",
    "AssetAlias",
    "AssetAliasMember",
    "AssetEvent",
    "Backfill",
    "BackfillInterval",
    "BackfillKey",
    "Base",
    "Dag",
    "DagFile",
    "DagPartition",
    "DagPartitionEvent",
    "DagPartitionPart",
    "DagRun",
    "DagScheduleAlias",
    "DagScheduleAsset",
    "FormerIdentity",
    "Instance",
    "ParkedBody",
    "ParkedMessage",
    "QueuedAssetEvent",
    "Stream",
    "StreamState",
    "TaskRun",
    "Trigger",
    "Watcher",
    "WatcherPosition",
    "WatcherReplay",
]
