"""Watchers, the triggers that serve them, the streams of the triggers, and the instances that host streams."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from secrets import token_hex
from typing import Any

from sqlalchemy import ForeignKey, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from triggerer.store.schema.models.base import Base, BigId, Json, UtcDateTime


class Trigger(Base):
    """A trigger: its class, and its arguments as canonical JSON.

    Several watchers may share a trigger. A trigger is deleted with its last watcher.
    """

    __tablename__ = "trigger"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    """SHA-256 of the class path, the arguments and the guarantee.

    For a trigger with a bookmark, the watcher's identity is hashed, too.
    """
    classpath: Mapped[str] = mapped_column(Text)
    kwargs: Mapped[dict[str, Any]] = mapped_column(Json)
    stream_digest: Mapped[str] = mapped_column(ForeignKey("stream.digest"), index=True)
    guarantee: Mapped[str | None] = mapped_column(String(20))
    """The lowest delivery guarantee that the DAG files accept. None: they accept any."""


class Watcher(Base):
    """A watcher of an asset, identified by asset and name, not by the arguments of its trigger.

    The row stays when the watcher is deleted, because the identity of the watcher's events includes
    the row's id. So if the watcher is declared again, the store still recognises redelivered
    messages.
    """

    __tablename__ = "watcher"
    __table_args__ = (UniqueConstraint("asset_id", "name"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    asset_id: Mapped[int] = mapped_column(ForeignKey("asset.id"))
    name: Mapped[str] = mapped_column(Text)
    trigger_id: Mapped[int | None] = mapped_column(ForeignKey("trigger.id"), index=True)
    """None: the watcher is deleted, because no file declares it any longer."""
    path: Mapped[str] = mapped_column(Text)
    """The DAG file that declares the watcher, or last declared it."""
    state: Mapped[str] = mapped_column(String(20), default="waiting")
    """waiting (no instance hosts the watcher), running, failing (it is restarted later), catching_up (it has a
    backlog).
    """
    error: Mapped[str | None] = mapped_column(Text)
    owner: Mapped[str | None] = mapped_column(String(80))
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)
    traceback: Mapped[str | None] = mapped_column(Text)
    """The traceback of the error."""
    cleaned_before: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """`db clean` has deleted events of the watcher from before this instant. None: no events were deleted.

    With the events, their idempotency keys are gone. So a message from before this instant creates another event if it
    is redelivered.
    """


class Stream(Base):
    """The unit that one instance owns: all triggers with one stream key, or a single trigger without a shared stream.

    The lease is (owner, epoch). `epoch` grows with every claim, so the store can tell the current owner's writes from
    those of an earlier owner. Instants are by the database's clock.
    """

    __tablename__ = "stream"

    digest: Mapped[str] = mapped_column(String(80), primary_key=True)
    """SHA-256 of the canonical stream key.

    For a trigger without a shared stream: "trigger-" and the trigger's digest. If the trigger has a bookmark:
    "watcher-" and the watcher's digest.
    """
    key: Mapped[str] = mapped_column(Text)
    """The stream key as readable text: the result of the trigger's `describe_stream()`, or the parts of the key."""
    owner: Mapped[str | None] = mapped_column(String(80))
    epoch: Mapped[int] = mapped_column(BigId, default=0)
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    closed_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """A new stream is not opened before this instant. None: it may be opened.

    A DAG file that is not read yet may declare another watcher of the stream, which would miss messages if the stream
    were already open.
    """
    incarnation: Mapped[str] = mapped_column(String(32), default=partial(token_hex, 8))
    """A random text, the first part of the stream's marks; see `StoredMark`. `db restored` replaces it."""
    marked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """The second part of the stream's newest mark. None: no owner has verified the broker's positions yet."""


class Instance(Base):
    """One part of the service (see `kind`) in one process. It counts as dead once its row is gone or has expired."""

    __tablename__ = "instance"

    id: Mapped[str] = mapped_column(String(80), primary_key=True)
    """`<host>:<pid>:<random>`, new at every start."""
    kind: Mapped[str] = mapped_column(String(20))
    """triggerer (owns streams), executor (owns runs), scheduler, dag-processor or api (these three own nothing)."""
    started_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)
    heartbeat_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """The last heartbeat of the instance."""
    release: Mapped[str] = mapped_column(String(40), server_default="", default="")
    """The release of triggerer that the process runs."""
    revision: Mapped[str] = mapped_column(String(32), server_default="", default="")
    """The newest migration that the release contains."""


class ProcessSettings(Base):
    """The settings with which a process started. One process may have several instances, one for each kind."""

    __tablename__ = "process_settings"

    process: Mapped[str] = mapped_column(String(80), primary_key=True)
    """`<host>:<pid>`. The ids of the process's instances begin with this."""
    settings: Mapped[list[dict[str, Any]]] = mapped_column(Json)
    """A list of `triggerer.operations.reading.configuration.SettingView` as JSON, without secrets."""
    saved_at: Mapped[datetime] = mapped_column(UtcDateTime)


class InstanceReport(Base):
    """The last report of an instance about its live state, which is otherwise only in memory.

    A triggerer reports its streams. An executor reports the address where it serves the logs of runs. If the instance
    cannot write, the old report stays, and readers show its age.
    """

    __tablename__ = "instance_report"

    instance_id: Mapped[str] = mapped_column(String(80), primary_key=True)
    version: Mapped[int] = mapped_column(BigId)
    """Grows with every report of this instance."""
    report: Mapped[dict[str, Any]] = mapped_column(Json)
    reported_at: Mapped[datetime] = mapped_column(UtcDateTime)
    looked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When a user last read reports. For a minute after this, the instance reports often.

    The stored time may be up to 20 seconds too early.
    """
