"""Backfills, and the intervals or partition keys that they cover."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from triggerer.store.schema.models.base import Base, BigId, Json, UtcDateTime

_PENDING = text("state = 'pending'")


class Backfill(Base):
    """A request for the runs of a DAG's timetable between two instants, or for the runs of some partition keys.

    In a backfill of partition keys, `from_date` and `to_date` are the instant of the request.
    """

    __tablename__ = "backfill"
    __table_args__ = (Index("ix_backfill_dag_id", "dag_id"), {"sqlite_autoincrement": True})

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    dag_id: Mapped[str] = mapped_column(ForeignKey("dag.dag_id"))
    from_date: Mapped[datetime] = mapped_column(UtcDateTime)
    to_date: Mapped[datetime] = mapped_column(UtcDateTime)
    reprocess: Mapped[str] = mapped_column(String(20))
    """none, failed or all: which intervals with an ended run are run again."""
    max_active: Mapped[int]
    """The most runs of the backfill that may be queued or running at a time."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    cancelled_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    params: Mapped[dict[str, Any] | None] = mapped_column(Json)
    """Parameters for all runs of the backfill. They replace the DAG's parameters of the same names."""


class BackfillInterval(Base):
    """One interval of a backfill. Its run is created when fewer than `max_active` runs of the backfill are unfinished.

    Intervals are started in the order of `number`.
    """

    __tablename__ = "backfill_interval"
    __table_args__ = (
        Index("ix_backfill_interval_pending", "backfill_id", "number", sqlite_where=_PENDING),
    )

    backfill_id: Mapped[int] = mapped_column(ForeignKey("backfill.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    logical_date: Mapped[datetime] = mapped_column(UtcDateTime)
    data_interval_start: Mapped[datetime] = mapped_column(UtcDateTime)
    data_interval_end: Mapped[datetime] = mapped_column(UtcDateTime)
    run_after: Mapped[datetime] = mapped_column(UtcDateTime)
    state: Mapped[str] = mapped_column(String(20))
    """pending, started (a run was created or repeated), skipped (a run existed) or cancelled."""
    run_pk: Mapped[int | None] = mapped_column(BigId)
    partition_key: Mapped[str | None] = mapped_column(Text)
    """The key that the timetable gave for the interval when the backfill was created."""


class BackfillKey(Base):
    """One partition key of a backfill. Keys are started in the order of `number`, like the intervals of a backfill.

    `state` has the values of `BackfillInterval.state`.
    """

    __tablename__ = "backfill_key"
    __table_args__ = (
        Index("ix_backfill_key_pending", "backfill_id", "number", sqlite_where=_PENDING),
    )

    backfill_id: Mapped[int] = mapped_column(ForeignKey("backfill.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    partition_key: Mapped[str] = mapped_column(Text)
    state: Mapped[str] = mapped_column(String(20))
    run_pk: Mapped[int | None] = mapped_column(BigId)
