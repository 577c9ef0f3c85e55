"""What has come for the partition keys of DAGs, and which run took it."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String, text
from sqlalchemy.orm import Mapped, mapped_column

from triggerer.store.schema.models.base import Base, BigId, TextByBytes, UtcDateTime

_WAITING = text("run_pk IS NULL")
_TAKEN = text("run_pk IS NOT NULL")
_NOTED = text("noted_at IS NOT NULL")


class DagPartition(Base):
    """A partition key of a DAG for which an event has come: one row, whatever comes at the same time.

    It stays once its run is made: what comes later is for a run of its own.
    """

    __tablename__ = "dag_partition"
    __table_args__ = (
        Index("ix_dag_partition_due", "dag_id", "due_at", "partition_key"),
        # For the keys that were noted before the clock was set back.
        Index("ix_dag_partition_noted", "dag_id", "noted_at", sqlite_where=_NOTED),
        {"sqlite_with_rowid": False},
    )

    dag_id: Mapped[str] = mapped_column(ForeignKey("dag.dag_id"), primary_key=True)
    partition_key: Mapped[str] = mapped_column(TextByBytes, primary_key=True)
    due_at: Mapped[datetime] = mapped_column(UtcDateTime)
    """When its run may start with what is there; `NEVER`: only once another event has come."""
    newest_at: Mapped[datetime] = mapped_column(UtcDateTime)
    """The instant of its newest event."""
    runs: Mapped[int]
    """How many the scheduler has made for it."""
    noted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When `due_at` was noted; None: it is `NEVER`, or a release before wrote it."""


class DagPartitionPart(Base):
    """A part of what the next run of a key waits for is there, such as an hour of its day; gone with the run."""

    __tablename__ = "dag_partition_part"
    __table_args__ = ({"sqlite_with_rowid": False},)

    dag_id: Mapped[str] = mapped_column(String(250), primary_key=True)
    partition_key: Mapped[str] = mapped_column(TextByBytes, primary_key=True)
    asset_id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=False)
    part: Mapped[str] = mapped_column(TextByBytes, primary_key=True)
    """The key of an event, as the asset's mapper would write it; "": the mapper knows no parts."""
    first_at: Mapped[datetime] = mapped_column(UtcDateTime)
    """The instant of its first event."""


class DagPartitionEvent(Base):
    """An asset event, as far as it is for one partition key of a DAG; `run_pk` is the run that took it, or None.

    The primary key keeps it out of two runs of the key. A scheduler writes the rows, from those of
    `queued_asset_event`; an event that is for several keys has several.
    """

    __tablename__ = "dag_partition_event"
    __table_args__ = (
        Index(
            "ix_dag_partition_event_waiting",
            "dag_id",
            "partition_key",
            "asset_id",
            "asset_event_id",
            sqlite_where=_WAITING,
        ),
        Index(
            "ix_dag_partition_event_run",
            "run_pk",
            "asset_id",
            "asset_event_id",
            sqlite_where=_TAKEN,
        ),
        # For what is left of an old event.
        Index("ix_dag_partition_event_asset_event_id", "asset_event_id"),
        {"sqlite_with_rowid": False},
    )

    dag_id: Mapped[str] = mapped_column(String(250), primary_key=True)
    partition_key: Mapped[str] = mapped_column(TextByBytes, primary_key=True)
    asset_event_id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=False)
    asset_id: Mapped[int] = mapped_column(BigId)
    run_pk: Mapped[int | None] = mapped_column(BigId)
