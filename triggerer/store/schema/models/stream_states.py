"""The states of producers without a broker, such as a position in the source."""

from __future__ import annotations

from sqlalchemy import String, Text
from sqlalchemy.orm import Mapped, mapped_column

from triggerer.store.schema.models.base import Base, BigId


class StreamState(Base):
    """The state of a stream. Written under its lease, and deleted with its last watcher."""

    __tablename__ = "stream_state"

    stream_digest: Mapped[str] = mapped_column(String(80), primary_key=True)
    epoch: Mapped[int] = mapped_column(BigId)
    """The epoch of the lease under which it was written."""
    value: Mapped[str] = mapped_column(Text)
    """JSON text. It may be a single number, which a `Json` column must not contain."""
