"""Assets, their events, and the queues of events that wait for DAGs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    ForeignKey,
    Index,
    PrimaryKeyConstraint,
    String,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from triggerer.store.schema.models.base import Base, BigId, Json, TextByBytes, UtcDateTime

_BY_TASKS = text("source_dag_id IS NOT NULL")


class Asset(Base):
    """One asset, identified by name and URI. A row is not deleted while events of the asset exist."""

    __tablename__ = "asset"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    name: Mapped[str] = mapped_column(Text, unique=True)
    uri: Mapped[str] = mapped_column(Text, unique=True)
    group: Mapped[str] = mapped_column(Text, default="asset")
    extra: Mapped[dict[str, Any]] = mapped_column(Json, default=dict)
    declared_in: Mapped[str | None] = mapped_column(Text)
    """The DAG file that declares the asset.

    None: no file declares the asset, for instance because an event created it, or because the file is gone.
    """
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class FormerIdentity(Base):
    """A former name and URI of an asset, and the last event that was recorded under them.

    When an asset's name or URI changes, its row in `asset` stays, so watchers, queues and schedules continue.

    A former identity covers the asset's events after the previous former identity, up to `last_event_id`. The events
    after the last former identity belong to the asset's current name and URI.
    """

    __tablename__ = "asset_former_identity"
    __table_args__ = ({"sqlite_with_rowid": False},)

    asset_id: Mapped[int] = mapped_column(ForeignKey("asset.id"), primary_key=True)
    last_event_id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=False)
    name: Mapped[str] = mapped_column(Text, index=True)
    uri: Mapped[str] = mapped_column(Text, index=True)


class AssetAlias(Base):
    """A name for assets that are not known yet: DAGs may wait for it, and tasks may attach events to it."""

    __tablename__ = "asset_alias"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    name: Mapped[str] = mapped_column(Text, unique=True)


class AssetAliasMember(Base):
    """An asset that an alias resolves to, because an event of the asset was attached to the alias."""

    __tablename__ = "asset_alias_member"

    alias_id: Mapped[int] = mapped_column(ForeignKey("asset_alias.id"), primary_key=True)
    asset_id: Mapped[int] = mapped_column(ForeignKey("asset.id"), primary_key=True)


class AssetEvent(Base):
    """An update of an asset.

    On PostgreSQL, an event may be committed after an event with a higher id. So a client that asks only for ids above
    the highest id that it saw would miss events, see `triggerer.store.events.following`.
    """

    __tablename__ = "asset_event"
    __table_args__ = (
        # These columns identify an event. Their values are equal for a redelivered message, a repeated commit and
        # another attempt of a task, so the event is stored once. An event without an idempotency key gets a unique key
        # that begins with "~". The key comes first in the index, so that rows that are written together are neighbours.
        UniqueConstraint(
            "idempotency_key", "watcher_id", "ordinal", "asset_id", name="uq_asset_event_identity"
        ),
        Index("ix_asset_event_asset_id_id", "asset_id", "id"),
        # This index has only the events that tasks emitted.
        Index(
            "ix_asset_event_source",
            "source_dag_id",
            "id",
            sqlite_where=_BY_TASKS,
        ),
        # Without AUTOINCREMENT, SQLite reuses the highest ids once their rows are deleted. A leftover queue entry of a
        # deleted event would then refer to a new event.
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    asset_id: Mapped[int] = mapped_column(BigId)
    """No foreign key: its check took a fifth of the insert's time. An asset is deleted only after its events."""
    extra: Mapped[dict[str, Any]] = mapped_column(Json)
    timestamp: Mapped[datetime] = mapped_column(UtcDateTime)
    watcher_id: Mapped[int] = mapped_column(BigId, default=0)
    """0 if the event is not from a watcher. No foreign key, because a watcher may be deleted before its events."""
    idempotency_key: Mapped[str] = mapped_column(TextByBytes)
    ordinal: Mapped[int] = mapped_column(default=0)
    """The number of this event among the events that one watcher derived from one message."""
    source_dag_id: Mapped[str | None] = mapped_column(Text)
    source_run_id: Mapped[str | None] = mapped_column(Text)
    source_task_id: Mapped[str | None] = mapped_column(Text)
    partition_key: Mapped[str | None] = mapped_column(Text)


class QueuedAssetEvent(Base):
    """An entry in the queue of a DAG: an asset event that waits for the DAG, or that a run of the DAG has taken.

    The transaction that stores an event also inserts its entries, even for paused DAGs. The primary key allows one
    entry for each event and DAG, so two runs of a DAG cannot take the same event. An entry is deleted:

    - with its run, its event or its DAG,
    - by an operator,
    - if its event cannot be divided among partition keys.
    """

    __tablename__ = "queued_asset_event"
    __table_args__ = (
        # The key begins with the event, so that new entries go to the end of the index. If the key began with the DAG,
        # PostgreSQL could search this index for a DAG's waiting events, and read every event that the DAG ever had.
        # PostgreSQL chooses such a plan while the queue is empty, and caches the plan.
        PrimaryKeyConstraint("asset_event_id", "dag_id"),
        Index(
            "ix_queued_asset_event_waiting",
            "dag_id",
            "asset_id",
            "asset_event_id",
            sqlite_where=text("run_pk IS NULL"),
        ),
        Index(
            "ix_queued_asset_event_run",
            "run_pk",
            "asset_id",
            "asset_event_id",
            sqlite_where=text("run_pk IS NOT NULL"),
        ),
        {"sqlite_with_rowid": False},
    )

    dag_id: Mapped[str] = mapped_column(String(250))
    asset_event_id: Mapped[int] = mapped_column(BigId, autoincrement=False)
    asset_id: Mapped[int] = mapped_column(BigId)
    run_pk: Mapped[int | None] = mapped_column(BigId)
    """The run that took the event. None: the event waits. 0: the event was divided among partition keys."""
