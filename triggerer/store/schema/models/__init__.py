"""The tables of the store as SQLAlchemy models. Tables that belong together share a module."""

from triggerer.store.schema.models.access import (
    ApiKey,
    ApiLogin,
    ApiRequest,
    ApiSession,
    ApiToken,
)
from triggerer.store.schema.models.assets import (
    Asset,
    AssetAlias,
    AssetAliasMember,
    AssetEvent,
    FormerIdentity,
    QueuedAssetEvent,
)
from triggerer.store.schema.models.audit import Audit, CleanedRows, CleaningTurn
from triggerer.store.schema.models.backfills import Backfill, BackfillInterval, BackfillKey
from triggerer.store.schema.models.base import Base
from triggerer.store.schema.models.bookmarks import WatcherBookmark
from triggerer.store.schema.models.compatibility import SchemaCompat
from triggerer.store.schema.models.dags import Dag, DagFile, DagScheduleAlias, DagScheduleAsset
from triggerer.store.schema.models.notifications import Notification, NotifiedSubject
from triggerer.store.schema.models.parked import ParkedBody, ParkedMessage
from triggerer.store.schema.models.partitions import (
    DagPartition,
    DagPartitionEvent,
    DagPartitionPart,
)
from triggerer.store.schema.models.positions import WatcherPosition, WatcherReplay
from triggerer.store.schema.models.restorations import Restoration
from triggerer.store.schema.models.runs import DagRun, RunAttempt, RunLaunch, TaskRun
from triggerer.store.schema.models.stream_states import StreamState
from triggerer.store.schema.models.triggers import (
    Instance,
    InstanceReport,
    ProcessSettings,
    Stream,
    Trigger,
    Watcher,
)

__all__ = [
    "ApiKey",
    "ApiLogin",
    "ApiRequest",
    "ApiSession",
    "ApiToken",
    "Asset",
    "AssetAlias",
    "AssetAliasMember",
    "AssetEvent",
    "Audit",
    "Backfill",
    "BackfillInterval",
    "BackfillKey",
    "Base",
    "CleanedRows",
    "CleaningTurn",
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
    "InstanceReport",
    "Notification",
    "NotifiedSubject",
    "ParkedBody",
    "ParkedMessage",
    "ProcessSettings",
    "QueuedAssetEvent",
    "Restoration",
    "RunAttempt",
    "RunLaunch",
    "SchemaCompat",
    "Stream",
    "StreamState",
    "TaskRun",
    "Trigger",
    "Watcher",
    "WatcherBookmark",
    "WatcherPosition",
    "WatcherReplay",
]
