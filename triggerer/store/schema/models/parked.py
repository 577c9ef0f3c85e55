"""Stored messages, which wait for a watcher that is behind in a queue, and parked messages."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, LargeBinary, String, Text, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from triggerer.store.schema.models.base import Base, BigId, UtcDateTime


class ParkedBody(Base):
    """The bytes of a message, stored once for all watchers of a stream.

    The row is deleted when no `ParkedMessage` refers to it any longer.
    """

    __tablename__ = "parked_body"
    __table_args__ = (
        UniqueConstraint("stream_digest", "idempotency_key"),
        # The sum of all sizes is read from this index, without the large rows.
        Index("ix_parked_body_size_bytes", "size_bytes"),
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    stream_digest: Mapped[str] = mapped_column(String(80))
    idempotency_key: Mapped[str] = mapped_column(Text)
    data: Mapped[bytes] = mapped_column(LargeBinary)
    """The message as its producer wrote it, see `SharedStreamProducer.dump_event`."""
    size_bytes: Mapped[int] = mapped_column(BigId)


class ParkedMessage(Base):
    """A message that a watcher has yet to receive (`kept`), or that is parked for the watcher (`set_aside`).

    The owner of the stream writes rows under its lease. Operators replay and discard parked messages without the lease.
    A parked message of a deleted watcher stays until an operator discards it.
    """

    __tablename__ = "parked_message"
    __table_args__ = (
        UniqueConstraint("watcher_id", "idempotency_key"),
        Index(
            "ix_parked_message_kept",
            "watcher_id",
            "lane",
            "id",
            sqlite_where=text("state = 'kept'"),
        ),
        # This index finds the parked messages about which no notification was made.
        Index(
            "ix_parked_message_untold",
            "watcher_id",
            sqlite_where=text("state = 'set_aside' AND notified_at IS NULL"),
        ),
        # AUTOINCREMENT: readers continue after the last id that they have seen, so no id may be used twice.
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    """Ids grow: a message that was stored later has a higher id."""
    watcher_id: Mapped[int] = mapped_column(ForeignKey("watcher.id"))
    body_id: Mapped[int] = mapped_column(ForeignKey("parked_body.id"), index=True)
    lane: Mapped[str] = mapped_column(Text)
    """The lane of the message, as canonical JSON."""
    idempotency_key: Mapped[str] = mapped_column(Text)
    state: Mapped[str] = mapped_column(String(20))
    """See `triggerer.domain.watchers.parked.ParkedState`."""
    failures: Mapped[int] = mapped_column()
    """How often the watcher has failed after it received this message and before it resolved the message."""
    error: Mapped[str | None] = mapped_column(Text)
    traceback: Mapped[str | None] = mapped_column(Text)
    parked_at: Mapped[datetime] = mapped_column(UtcDateTime)
    notified_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When a notification about the parked message was made. None: none was made."""
