"""The partition keys of DAGs: the events that arrived for each key, and the runs that took them."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String, text
from sqlalchemy.orm import Mapped, mapped_column

from triggerer.store.schema.models.base import Base, BigId, TextByBytes, UtcDateTime

_WAITING = text("run_pk IS NULL")
_TAKEN = text("run_pk IS NOT NULL")
_HAS_DUE_TIME = text("noted_at IS NOT NULL")


class DagPartition(Base):
    """A partition key of a DAG for which an event arrived. One row, even if several events arrive at once.

    The row stays once its run exists, because later events go into another run of the key.
    """

    __tablename__ = "dag_partition"
    __table_args__ = (
        Index("ix_dag_partition_due", "dag_id", "due_at", "partition_key"),
        # For keys whose due time was computed before the clock was set back.
        Index("ix_dag_partition_noted", "dag_id", "noted_at", sqlite_where=_HAS_DUE_TIME),
        {"sqlite_with_rowid": False},
    )

    dag_id: Mapped[str] = mapped_column(ForeignKey("dag.dag_id"), primary_key=True)
    partition_key: Mapped[str] = mapped_column(TextByBytes, primary_key=True)
    due_at: Mapped[datetime] = mapped_column(UtcDateTime)
    """When its run may start with the present events. `NEVER`: only after another event."""
    newest_at: Mapped[datetime] = mapped_column(UtcDateTime)
    """The instant of its newest event."""
    runs: Mapped[int]
    """How many runs the scheduler has created for it."""
    noted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When `due_at` was computed. None if it is `NEVER`, or was written by an earlier release."""


class DagPartitionPart(Base):
    """A part that is present for the next run of a key, such as an hour of its day. Deleted when the run exists."""

    __tablename__ = "dag_partition_part"
    __table_args__ = ({"sqlite_with_rowid": False},)

    dag_id: Mapped[str] = mapped_column(String(250), primary_key=True)
    partition_key: Mapped[str] = mapped_column(TextByBytes, primary_key=True)
    asset_id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=False)
    part: Mapped[str] = mapped_column(TextByBytes, primary_key=True)
    """The key of an event in the form of the asset's mapper, or "" if the mapper has no parts."""
    first_at: Mapped[datetime] = mapped_column(UtcDateTime)
    """The instant of its first event."""


class DagPartitionEvent(Base):
    """An asset event that belongs to one partition key of a DAG. `run_pk` is the run that took it, or None.

    Because of the primary key, the event can be in only one run of the key. A scheduler moves rows here from
    `queued_asset_event`. An event that belongs to several keys has several rows.
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
        # For the entries of an old event.
        Index("ix_dag_partition_event_asset_event_id", "asset_event_id"),
        {"sqlite_with_rowid": False},
    )

    dag_id: Mapped[str] = mapped_column(String(250), primary_key=True)
    partition_key: Mapped[str] = mapped_column(TextByBytes, primary_key=True)
    asset_event_id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=False)
    asset_id: Mapped[int] = mapped_column(BigId)
    run_pk: Mapped[int | None] = mapped_column(BigId)
