"""The partition keys of DAGs: the events that arrived for each key, and the runs that took them.

An event for several keys has a share in each key. In a roll-up, the run of a key waits for several parts, such as the
hours of a day.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String, text
from sqlalchemy.orm import Mapped, mapped_column

from triggerer.store.schema.models.base import Base, BigId, TextByBytes, UtcDateTime

_WAITING = text("run_pk IS NULL")
_TAKEN = text("run_pk IS NOT NULL")
_HAS_DUE_TIME = text("noted_at IS NOT NULL")


class DagPartition(Base):
    """A partition key of a DAG for which at least one event arrived. There is one row for each key.

    The row stays after a run was created for the key, because later events go into another run of the key.
    """

    __tablename__ = "dag_partition"
    __table_args__ = (
        Index("ix_dag_partition_due", "dag_id", "due_at", "partition_key"),
        # This index finds keys whose due time was computed before the clock was set back.
        Index("ix_dag_partition_noted", "dag_id", "noted_at", sqlite_where=_HAS_DUE_TIME),
        {"sqlite_with_rowid": False},
    )

    dag_id: Mapped[str] = mapped_column(ForeignKey("dag.dag_id"), primary_key=True)
    partition_key: Mapped[str] = mapped_column(TextByBytes, primary_key=True)
    due_at: Mapped[datetime] = mapped_column(UtcDateTime)
    """When the next run of the key may start with the events that wait now. `NEVER`: only after another event."""
    newest_at: Mapped[datetime] = mapped_column(UtcDateTime)
    """The instant of the key's newest event."""
    runs: Mapped[int]
    """How many runs the scheduler has created for the key."""
    noted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When `due_at` was computed; None if `due_at` is `NEVER`."""


class DagPartitionPart(Base):
    """A part of a partition key that has arrived for the key's next run, such as one hour of a day.

    The row is deleted when the run is created.
    """

    __tablename__ = "dag_partition_part"
    __table_args__ = ({"sqlite_with_rowid": False},)

    dag_id: Mapped[str] = mapped_column(String(250), primary_key=True)
    partition_key: Mapped[str] = mapped_column(TextByBytes, primary_key=True)
    asset_id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=False)
    part: Mapped[str] = mapped_column(TextByBytes, primary_key=True)
    """The partition key of this part's events, as the roll-up writes it. "": the asset's mapper is no roll-up."""
    first_at: Mapped[datetime] = mapped_column(UtcDateTime)
    """The instant of the part's first event. The part's deadlines count from this instant."""


class DagPartitionEvent(Base):
    """A share: an asset event that belongs to one partition key of a DAG.

    A scheduler divides the events in `queued_asset_event` among the keys. An event gets one row for each of its keys,
    and each row is taken by one run. So no two runs of a key take the same event.
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
        # This index finds all entries of one event.
        Index("ix_dag_partition_event_asset_event_id", "asset_event_id"),
        {"sqlite_with_rowid": False},
    )

    dag_id: Mapped[str] = mapped_column(String(250), primary_key=True)
    partition_key: Mapped[str] = mapped_column(TextByBytes, primary_key=True)
    asset_event_id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=False)
    asset_id: Mapped[int] = mapped_column(BigId)
    run_pk: Mapped[int | None] = mapped_column(BigId)
    """The run that took the event. None: the event waits."""
