"""Messages that wait for a watcher, or that it could not process."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, LargeBinary, String, Text, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from triggerer.store.schema.models.base import Base, BigId, UtcDateTime


class ParkedBody(Base):
    """The bytes of a message, stored once for all watchers of a stream. Deleted with the last message of a watcher."""

    __tablename__ = "parked_body"
    __table_args__ = (
        UniqueConstraint("stream_digest", "idempotency_key"),
        # For the sum of all sizes, without a look at the messages.
        Index("ix_parked_body_size_bytes", "size_bytes"),
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    stream_digest: Mapped[str] = mapped_column(String(80))
    idempotency_key: Mapped[str] = mapped_column(Text)
    data: Mapped[bytes] = mapped_column(LargeBinary)
    """The message as the producer dumped it."""
    size_bytes: Mapped[int] = mapped_column(BigId)


class ParkedMessage(Base):
    """A message that a watcher has yet to receive (`kept`), or that is parked (`set_aside`); see contract, rule 18.

    Written under the stream's lease. If the watcher is removed, a parked message stays until it is discarded.
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
        # Readers continue after the last id that they have seen, so no id may be used twice.
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    """Grows in the order of first storing."""
    watcher_id: Mapped[int] = mapped_column(ForeignKey("watcher.id"))
    body_id: Mapped[int] = mapped_column(ForeignKey("parked_body.id"), index=True)
    lane: Mapped[str] = mapped_column(Text)
    """Canonical JSON."""
    idempotency_key: Mapped[str] = mapped_column(Text)
    state: Mapped[str] = mapped_column(String(20))
    """See `triggerer.domain.watchers.parked.ParkedState`."""
    failures: Mapped[int] = mapped_column()
    """How often the watcher has failed with the message open."""
    error: Mapped[str | None] = mapped_column(Text)
    traceback: Mapped[str | None] = mapped_column(Text)
    parked_at: Mapped[datetime] = mapped_column(UtcDateTime)
