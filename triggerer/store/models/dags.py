"""DAG files, and the DAGs that the DAG processor found in them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from triggerer.store.models.base import Base, Json, UtcDateTime


class DagFile(Base):
    """One file of the DAGs folder, and why it could not be read, if so."""

    __tablename__ = "dag_file"

    path: Mapped[str] = mapped_column(Text, primary_key=True)
    """Relative to the DAGs folder, with forward slashes."""
    parsed_at: Mapped[datetime] = mapped_column(UtcDateTime)
    parse_seconds: Mapped[float]
    errors: Mapped[list[dict[str, Any]]] = mapped_column(Json, default=list)
    """[{"file", "line" (or null), "reason"}], empty when all is well."""
    warnings: Mapped[list[dict[str, Any]]] = mapped_column(Json, default=list)
    missing_since: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """By the database's clock: the folder does not have it, and may get it back, see `judge_missing`."""


class Dag(Base):
    """A DAG as its file last described it, and whether it is paused."""

    __tablename__ = "dag"

    dag_id: Mapped[str] = mapped_column(String(250), primary_key=True)
    path: Mapped[str] = mapped_column(Text)
    description: Mapped[str | None] = mapped_column(Text)
    tags: Mapped[list[str]] = mapped_column(Json, default=list)
    schedule: Mapped[dict[str, Any] | None] = mapped_column(Json)
    """The asset expression as `triggerer.domain.conditions` writes it; None: runs are triggered by hand only."""
    max_active_runs: Mapped[int] = mapped_column(default=16)
    events_per_run: Mapped[int | None]
    params: Mapped[dict[str, Any]] = mapped_column(Json, default=dict)
    tasks: Mapped[list[dict[str, Any]]] = mapped_column(Json, default=list)
    """In order: [{"task_id", "upstream": [task ids], "outlets", "inlets", "needs_spark"}]."""
    is_paused: Mapped[bool] = mapped_column(default=False)
    is_stale: Mapped[bool] = mapped_column(default=False)
    """Its file, or its definition in the file, is gone. It is kept, and not scheduled."""
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


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
