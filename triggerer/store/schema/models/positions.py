"""Where watchers stand that have fallen behind."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Boolean, ForeignKey, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from triggerer.store.schema.models.base import Base, BigId, Json, UtcDateTime


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
    """`[incarnation, number]` of the first message whose events are not all durable, or of the last one's end."""
    since: Mapped[datetime] = mapped_column(UtcDateTime)
    head: Mapped[int | None] = mapped_column(BigId)
    """The number that the lane's next message will have, as it was when this was written; None: unknown.

    Where nothing is left it is that of `position`: places in between hold no message."""
    failures: Mapped[int] = mapped_column(server_default=text("0"))
    """How often the watcher has failed with the message at `position` open, since it is behind."""
    reemit: Mapped[list[Any] | None] = mapped_column(Json)
    """`[replay, start, until]`: between the two positions events are made again, under keys with the replay's id."""
    rewound_to: Mapped[list[Any] | None] = mapped_column(Json)
    """Where a replay began, until the broker was advanced to there: what is broadcast may lie before."""


class WatcherReplay(Base):
    """A request to set a watcher back in its log (contract, rule 18). It goes when its stream's owner has done so."""

    __tablename__ = "watcher_replay"
    # Its id is in the keys of what is made again: none is used twice.
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    watcher_id: Mapped[int] = mapped_column(BigId, ForeignKey("watcher.id"), index=True)
    start: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """From what was published then or later; None: from the earliest message."""
    reemit: Mapped[bool] = mapped_column(Boolean)
    """Whether events that exist are made once more."""
    requested_at: Mapped[datetime] = mapped_column(UtcDateTime)
