"""The audit of changes that people and programs requested, and the state and results of cleanings of the database."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import String, Text
from sqlalchemy.orm import Mapped, mapped_column

from triggerer.store.schema.models.base import Base, BigId, Json, UtcDateTime


class Audit(Base):
    """One change that a person or a program requested. The transaction that makes the change also writes this row."""

    __tablename__ = "audit"
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)
    actor: Mapped[str] = mapped_column(Text)
    role: Mapped[str] = mapped_column(String(20))
    """viewer, operator or admin."""
    via: Mapped[str] = mapped_column(String(80))
    """How the actor reached the service, see `triggerer.domain.actors.Actor.via`."""
    action: Mapped[str] = mapped_column(String(40))
    """A value of `triggerer.operations.audit.Action`."""
    subject: Mapped[str] = mapped_column(Text)
    """The changed object, as commands print it: an asset, a watcher as ASSET/NAME, a DAG id, the DAG id and run id of a
    run, or the id of another object.
    """
    before: Mapped[dict[str, Any] | None] = mapped_column(Json)
    """The changed values before the change. None: there were none, or they are unknown."""
    after: Mapped[dict[str, Any] | None] = mapped_column(Json)
    """The changed values after the change. None: there are none, for instance because the object was deleted."""
    request_id: Mapped[str | None] = mapped_column(String(80))


class CleanedRows(Base):
    """The number of rows of one kind, or of logs, that cleanings have deleted from this database."""

    __tablename__ = "cleaned_rows"

    kind: Mapped[str] = mapped_column(String(20), primary_key=True)
    """A key of `triggerer.operations.cleaning.cleaned.Cleaned.deleted`."""
    number: Mapped[int] = mapped_column(BigId)


class CleaningTurn(Base):
    """Which cleaning of the database is under way, and how the last cleanings ended. The table has one row."""

    __tablename__ = "cleaning_turn"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Always 1."""
    made_at: Mapped[datetime] = mapped_column(UtcDateTime)
    """When a process first asked whether a cleaning is due, or started a cleaning.

    The first nightly cleaning is due in the night after this instant.
    """
    holder: Mapped[str | None] = mapped_column(String(80))
    """The id of the cleaning. None: no cleaning is under way."""
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """After this instant another cleaning may begin, because the process of the holder seems to be dead."""
    began_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When the last cleaning began."""
    succeeded_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When the last cleaning without an error ended."""
    deleted: Mapped[dict[str, int] | None] = mapped_column(Json)
    """The numbers of rows and logs that the last cleaning without an error deleted, by kind."""
    failed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When the last cleaning with an error ended."""
    error: Mapped[str | None] = mapped_column(Text)
    """The error of the last cleaning that was not stopped. None: it had no error."""
    failures: Mapped[int] = mapped_column(server_default="0", default=0)
    """The number of cleanings that have failed on this database."""
    full_bytes: Mapped[int | None] = mapped_column(BigId)
    """The size of the database after the last cleaning, if this size was above the configured bound; None on SQLite.

    A cleaning does not shrink the files. So the database counts as full again only when it has grown beyond this size.
    """
