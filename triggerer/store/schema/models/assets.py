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
    """One asset, identified by name and URI. Rows are never deleted while an event names them.

    The row has the present identity. Earlier ones are in `FormerIdentity`.
    """

    __tablename__ = "asset"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    name: Mapped[str] = mapped_column(Text, unique=True)
    uri: Mapped[str] = mapped_column(Text, unique=True)
    group: Mapped[str] = mapped_column(Text, default="asset")
    extra: Mapped[dict[str, Any]] = mapped_column(Json, default=dict)
    declared_in: Mapped[str | None] = mapped_column(Text)
    """The DAG file that declares the asset.

    None: an event created the asset, or its file is gone.
    """
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class FormerIdentity(Base):
    """A former name and URI of an asset, with the events that were recorded under them.

    An asset whose name or URI changes keeps its row. So watchers, queues and schedules continue, and no event that
    arrives during the change is lost. An event belongs to the row with the lowest `last_event_id` that is not below the
    event's id.
    """

    __tablename__ = "asset_former_identity"
    __table_args__ = ({"sqlite_with_rowid": False},)

    asset_id: Mapped[int] = mapped_column(ForeignKey("asset.id"), primary_key=True)
    last_event_id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=False)
    name: Mapped[str] = mapped_column(Text, index=True)
    uri: Mapped[str] = mapped_column(Text, index=True)


class AssetAlias(Base):
    """A name that events may be attached to, and DAGs may wait for, before its assets are known."""

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

    Ids do not follow the order of commits, so they must not be used as cursors.
    """

    __tablename__ = "asset_event"
    __table_args__ = (
        # Makes a redelivered message, a repeated commit and a repeated task idempotent (contract, rule 13). If the
        # broker gives no key, the writer makes one ("~" and a UUID), so the column is never null. The key comes first,
        # so that rows that are written together are neighbours in the index, even if a thousand watchers take turns.
        UniqueConstraint(
            "idempotency_key", "watcher_id", "ordinal", "asset_id", name="uq_asset_event_identity"
        ),
        Index("ix_asset_event_asset_id_id", "asset_id", "id"),
        # Only for events that tasks emitted.
        Index(
            "ix_asset_event_source",
            "source_dag_id",
            "id",
            sqlite_where=_BY_TASKS,
        ),
        # Otherwise SQLite reuses the highest ids once their rows are deleted, and a queue entry that outlived its
        # event would refer to another one.
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    asset_id: Mapped[int] = mapped_column(BigId)
    """No foreign key, because rows of assets are never deleted, and the check took a fifth of the insert's time."""
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
    """An asset event that waits, or has waited, for a DAG. `run_pk` is the run that took it, or None.

    The primary key keeps an event out of two runs of a DAG. Rows are written in the event's own
    transaction, even for paused DAGs. They are deleted with their run, or by an operator.
    """

    __tablename__ = "queued_asset_event"
    __table_args__ = (
        # The key begins with the event, so that new entries go to the end of the index, however many DAGs wait. Then
        # only the waiting index can find a DAG's events. If the key began with the DAG, a plan that was cached while
        # nothing was queued would read every event that the DAG ever had.
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
