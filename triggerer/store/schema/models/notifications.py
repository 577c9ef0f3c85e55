"""Notifications that are not delivered yet, and the last notification about each watcher and DAG."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from triggerer.store.schema.models.base import Base, BigId, UtcDateTime


class Notification(Base):
    """One message for one target. The row is deleted when the target has accepted the message."""

    __tablename__ = "notification"
    __table_args__ = (
        Index("ix_notification_target_due_at", "target", "due_at"),
        # AUTOINCREMENT: the outcome of a sending is stored by id, so no id may be used twice.
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    target: Mapped[str] = mapped_column(Text)
    """The target's name, without secrets; see `triggerer.observability.target_names`."""
    title: Mapped[str] = mapped_column(Text)
    body: Mapped[str] = mapped_column(Text)
    severity: Mapped[str] = mapped_column(String(20))
    """failure, or success if something works again."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    due_at: Mapped[datetime] = mapped_column(UtcDateTime)
    """Before this instant, no process sends the message. To send it, a process first sets a later instant. If the
    process dies, the message is due again at that instant.
    """
    attempts: Mapped[int] = mapped_column(default=0)


class NotifiedSubject(Base):
    """The last notification about a watcher or a DAG, see `triggerer.domain.notifications.LastNotification`.

    The row with the event `digest` and an empty subject is about the last digest. Processes lock this row before they
    create notifications, so that no two processes notify people of the same occurrence.
    """

    __tablename__ = "notified_subject"

    event: Mapped[str] = mapped_column(String(40), primary_key=True)
    subject: Mapped[str] = mapped_column(String(250), primary_key=True)
    told_at: Mapped[datetime] = mapped_column(UtcDateTime)
    is_single: Mapped[bool]
    is_failing: Mapped[bool]
    since: Mapped[datetime | None] = mapped_column(UtcDateTime)
