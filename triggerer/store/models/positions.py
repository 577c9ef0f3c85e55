"""Where watchers stand that have fallen behind."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from triggerer.store.models.base import Base, BigId, Json, UtcDateTime


class WatcherPosition(Base):
    """A lane of a log in which a watcher is behind: one row, however much lies behind (contract, rule 18).

    Written under the stream's lease. It goes once the watcher has caught up and the broker was advanced to it, when the
    watcher is deleted, or when its trigger moves to another stream.
    """

    __tablename__ = "watcher_position"

    watcher_id: Mapped[int] = mapped_column(BigId, ForeignKey("watcher.id"), primary_key=True)
    lane: Mapped[str] = mapped_column(Text, primary_key=True)
    """Canonical JSON."""
    stream_digest: Mapped[str] = mapped_column(String(80), index=True)
    position: Mapped[list[Any]] = mapped_column(Json)
    """`[incarnation, number]` of the first message whose events are not all durable."""
    since: Mapped[datetime] = mapped_column(UtcDateTime)
    head: Mapped[int | None] = mapped_column(BigId)
    """The number that the lane's next message will have, as it was when this was written; None: unknown."""
    failures: Mapped[int] = mapped_column(server_default=text("0"))
    """How often the watcher has failed with the message at `position` open, since it is behind."""
