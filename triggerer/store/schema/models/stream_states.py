"""The states that producers store for sources that remember no position themselves, such as a directory."""

from __future__ import annotations

from sqlalchemy import String, Text
from sqlalchemy.orm import Mapped, mapped_column

from triggerer.store.schema.models.base import Base, BigId


class StreamState(Base):
    """The state that a stream's producer stores. It is written under the stream's lease.

    The row is deleted with the stream's last watcher.
    """

    __tablename__ = "stream_state"

    stream_digest: Mapped[str] = mapped_column(String(80), primary_key=True)
    epoch: Mapped[int] = mapped_column(BigId)
    """The epoch of the lease under which the state was written."""
    value: Mapped[str] = mapped_column(Text)
    """JSON text. It may be a single number, which a `Json` column must not contain."""
