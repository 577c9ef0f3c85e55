"""DAG files, and the DAGs that the DAG processor found in them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import ForeignKey, Index, String, Text, false
from sqlalchemy.orm import Mapped, mapped_column

from triggerer.store.schema.models.base import Base, Json, UtcDateTime

NEVER: Final = datetime(9999, 1, 1, tzinfo=UTC)
"""Stands for "no instant" in columns that are sorted, such as the due time of a DAG without a timetable.

NULL would be sorted first on SQLite and last on PostgreSQL."""


class DagFile(Base):
    """One file of the DAGs folder, or a subfolder that cannot be read, with its errors and warnings."""

    __tablename__ = "dag_file"

    path: Mapped[str] = mapped_column(Text, primary_key=True)
    """Relative to the DAGs folder, with forward slashes."""
    parsed_at: Mapped[datetime] = mapped_column(UtcDateTime)
    parse_seconds: Mapped[float]
    errors: Mapped[list[dict[str, Any]]] = mapped_column(Json, default=list)
    """[{"file", "line" (or null), "reason"}], empty if there is no error."""
    warnings: Mapped[list[dict[str, Any]]] = mapped_column(Json, default=list)
    missing_since: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When the file was first missing, by the database's clock. A missing file may come back, see `judge_missing`."""
    is_broken: Mapped[bool] = mapped_column(server_default=false(), default=False)
    """True if the file does not load. With `[executor] broken_file = "hold"`, queued runs of its DAGs wait until it
    loads.
    """


class Dag(Base):
    """A DAG as its file last described it, and whether it is paused."""

    __tablename__ = "dag"
    __table_args__ = (Index("ix_dag_next_run_after", "next_run_after"),)

    dag_id: Mapped[str] = mapped_column(String(250), primary_key=True)
    path: Mapped[str] = mapped_column(Text)
    description: Mapped[str | None] = mapped_column(Text)
    tags: Mapped[list[str]] = mapped_column(Json, default=list)
    schedule: Mapped[dict[str, Any] | None] = mapped_column(Json)
    """The JSON of `triggerer.domain.schedules`. None: people trigger all runs."""
    max_active_runs: Mapped[int] = mapped_column(default=16)
    events_per_run: Mapped[int | None]
    params: Mapped[dict[str, Any]] = mapped_column(Json, default=dict)
    tasks: Mapped[list[dict[str, Any]]] = mapped_column(Json, default=list)
    """In order: [{"task_id", "upstream": [task ids], "outlets", "inlets", "needs_spark"}]."""
    is_paused: Mapped[bool] = mapped_column(default=False)
    is_stale: Mapped[bool] = mapped_column(default=False)
    """True if the DAG's file, or the DAG's definition in it, is gone. The row stays, but the DAG is not scheduled."""
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)
    start_date: Mapped[datetime | None] = mapped_column(UtcDateTime)
    end_date: Mapped[datetime | None] = mapped_column(UtcDateTime)
    catchup: Mapped[bool] = mapped_column(server_default=false(), default=False)
    min_run_gap: Mapped[float | None]
    """In seconds."""
    quiet_period: Mapped[float | None]
    """In seconds."""
    depends_on_past: Mapped[bool] = mapped_column(server_default=false(), default=False)
    priority: Mapped[int] = mapped_column(server_default="0", default=0)
    pools: Mapped[str | None] = mapped_column(Text)
    """The pools of the DAG's tasks, sorted and comma-separated. None: no task uses a pool."""
    next_run_after: Mapped[datetime] = mapped_column(
        UtcDateTime, server_default=f"{NEVER:%Y-%m-%d %H:%M:%S.%f}", default=NEVER
    )
    """When the timetable makes the DAG due next. `NEVER`: there is no timetable, or it has no further run.

    For a DAG that is scheduled by partition keys, this is when the next key is due. `NEVER`: every key needs another
    event.

    At this instant the scheduler reads the DAG, and `triggerer.scheduler.decide` decides whether to create a run.
    """
    next_interval_start: Mapped[datetime | None] = mapped_column(UtcDateTime)
    next_interval_end: Mapped[datetime | None] = mapped_column(UtcDateTime)
    last_run_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When the scheduler last created a run of the DAG, by the database's clock. `min_run_gap` counts from then."""
    callbacks: Mapped[str | None] = mapped_column(Text)
    """The states, `success` or `failed` or both, after which the DAG wants a callback. None: no callback."""


class DagScheduleAsset(Base):
    """A DAG waits for events of this asset."""

    __tablename__ = "dag_schedule_asset"
    __table_args__ = (Index("ix_dag_schedule_asset_asset_id", "asset_id"),)

    dag_id: Mapped[str] = mapped_column(ForeignKey("dag.dag_id"), primary_key=True)
    asset_id: Mapped[int] = mapped_column(ForeignKey("asset.id"), primary_key=True)


class DagScheduleAlias(Base):
    """A DAG waits for events attached to this alias."""

    __tablename__ = "dag_schedule_alias"

    dag_id: Mapped[str] = mapped_column(ForeignKey("dag.dag_id"), primary_key=True)
    alias_id: Mapped[int] = mapped_column(ForeignKey("asset_alias.id"), primary_key=True)
