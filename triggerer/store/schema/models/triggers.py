"""Watchers, the triggers that serve them, and the streams that the triggers belong to."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from triggerer.store.schema.models.base import Base, BigId, Json, UtcDateTime


class Trigger(Base):
    """A class and its canonical JSON arguments.

    Several watchers may share a trigger. It is deleted with its last watcher.
    """

    __tablename__ = "trigger"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    """SHA-256 of the class path, the canonical JSON of the arguments, and the watcher if it has a bookmark."""
    classpath: Mapped[str] = mapped_column(Text)
    kwargs: Mapped[dict[str, Any]] = mapped_column(Json)
    stream_digest: Mapped[str] = mapped_column(ForeignKey("stream.digest"), index=True)
    guarantee: Mapped[str | None] = mapped_column(String(20))
    """The guarantee that its watchers ask for, or None. Part of the digest."""


class Watcher(Base):
    """An asset's watcher, identified by asset and name, not by the arguments of its trigger.

    The row stays when the watcher is removed. The row's id is part of a message's identity, and a message may be
    redelivered after the watcher is declared again.
    """

    __tablename__ = "watcher"
    __table_args__ = (UniqueConstraint("asset_id", "name"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    asset_id: Mapped[int] = mapped_column(ForeignKey("asset.id"))
    name: Mapped[str] = mapped_column(Text)
    trigger_id: Mapped[int | None] = mapped_column(ForeignKey("trigger.id"), index=True)
    """None: no file declares it any longer."""
    path: Mapped[str] = mapped_column(Text)
    """The DAG file that declares it."""
    state: Mapped[str] = mapped_column(String(20), default="waiting")
    """waiting (no instance hosts it), running, failing (in back-off, see error), or catching_up (it has a backlog)."""
    error: Mapped[str | None] = mapped_column(Text)
    owner: Mapped[str | None] = mapped_column(String(80))
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)
    traceback: Mapped[str | None] = mapped_column(Text)
    """The traceback of the error."""
    cleaned_before: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """Some of its events older than this were deleted with their keys. None: none were."""


class Stream(Base):
    """The unit of ownership (contract, rule 15): a stream key, or one standalone trigger.

    The lease is (owner, epoch). `epoch` grows with every claim, so that transactions of a former owner can be told from
    transactions of the present owner. Instants are the database's.
    """

    __tablename__ = "stream"

    digest: Mapped[str] = mapped_column(String(80), primary_key=True)
    """SHA-256 of the canonical stream key.

    For a standalone trigger: "trigger-" and the trigger's digest. With a bookmark: "watcher-" and the watcher's.
    """
    key: Mapped[str] = mapped_column(Text)
    """The key in readable form: `describe_stream()`, or the parts of the key."""
    owner: Mapped[str | None] = mapped_column(String(80))
    epoch: Mapped[int] = mapped_column(BigId, default=0)
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    closed_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """A new stream stays closed until then, because other files may declare watchers of it, and are not read yet.

    None: it may be opened.
    """


class Instance(Base):
    """A part of the service in a process. It is dead once this row is gone or has expired."""

    __tablename__ = "instance"

    id: Mapped[str] = mapped_column(String(80), primary_key=True)
    """`<host>:<pid>:<random>`, new at every start."""
    kind: Mapped[str] = mapped_column(String(20))
    """triggerer, executor, scheduler, dag-processor or api. Only the first two own what others must take over."""
    started_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)
    heartbeat_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """Its last heartbeat."""
    release: Mapped[str] = mapped_column(String(40), server_default="", default="")
    """The release of its code."""


class ProcessSettings(Base):
    """The settings of a process, as it started. A process has one or several instances."""

    __tablename__ = "process_settings"

    process: Mapped[str] = mapped_column(String(80), primary_key=True)
    """`<host>:<pid>`, with which the ids of its instances begin."""
    settings: Mapped[list[dict[str, Any]]] = mapped_column(Json)
    """`triggerer.operations.reading.configuration.SettingView` as JSON: without secrets."""
    saved_at: Mapped[datetime] = mapped_column(UtcDateTime)


class InstanceReport(Base):
    """The live state of an instance, which is in its memory and nowhere else. Written outside every other transaction.

    The rows are best effort: an instance that cannot write keeps its old report, and readers show the report's age.
    """

    __tablename__ = "instance_report"

    instance_id: Mapped[str] = mapped_column(String(80), primary_key=True)
    version: Mapped[int] = mapped_column(BigId)
    """Grows with every report of this instance."""
    report: Mapped[dict[str, Any]] = mapped_column(Json)
    reported_at: Mapped[datetime] = mapped_column(UtcDateTime)
    looked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When somebody last read it. The instance reports more often for a while after that."""
