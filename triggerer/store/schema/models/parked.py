"""Messages that are kept for one watcher: those that it could not take."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, LargeBinary, String, Text, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from triggerer.store.schema.models.base import Base, BigId, UtcDateTime


class ParkedBody(Base):
    """The bytes of a message, once for all watchers of a stream that refer to it. It goes with the last of them."""

    __tablename__ = "parked_body"
    __table_args__ = (
        UniqueConstraint("stream_digest", "idempotency_key"),
        # All of them are summed up, without a look at the messages.
        Index("ix_parked_body_size_bytes", "size_bytes"),
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    stream_digest: Mapped[str] = mapped_column(String(80))
    idempotency_key: Mapped[str] = mapped_column(Text)
    data: Mapped[bytes] = mapped_column(LargeBinary)
    """As the producer dumped it."""
    size_bytes: Mapped[int] = mapped_column(BigId)


class ParkedMessage(Base):
    """A message that a watcher has still to get, or could not take (contract, rule 18).

    Written under the stream's lease. What is set aside stays when the watcher is removed, until it is discarded.
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
        # Whoever reads on behind the last one that it has seen must not meet its number again.
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    """Grows in the order in which messages were parked first."""
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
