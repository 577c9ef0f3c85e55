"""The positions of watchers that have fallen behind."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Boolean, ForeignKey, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from triggerer.store.schema.models.base import Base, BigId, Json, UtcDateTime


class WatcherPosition(Base):
    """The position of a watcher that is behind in a lane of a log. One row, however long the backlog (rule 18).

    Written under the stream's lease. The row is deleted once the watcher has caught up and the broker has advanced to
    the position, when the watcher is deleted, or when its trigger moves to another stream.
    """

    __tablename__ = "watcher_position"

    watcher_id: Mapped[int] = mapped_column(BigId, ForeignKey("watcher.id"), primary_key=True)
    lane: Mapped[str] = mapped_column(Text, primary_key=True)
    """Canonical JSON."""
    stream_digest: Mapped[str] = mapped_column(String(80), index=True)
    position: Mapped[list[Any]] = mapped_column(Json)
    """`[incarnation, number]` of the first message whose events are not all durable, or of the end of the lane."""
    since: Mapped[datetime] = mapped_column(UtcDateTime)
    head: Mapped[int | None] = mapped_column(BigId)
    """The number that the lane's next message will get, as known at the last write. None: unknown.

    If the backlog is empty, this is the number in `position`, because the positions between contain no message."""
    failures: Mapped[int] = mapped_column(server_default=text("0"))
    """How often the watcher has failed with the message at `position` open since it fell behind."""
    reemit: Mapped[list[Any] | None] = mapped_column(Json)
    """`[replay, start, until]`: events between the two positions are created again, with the replay's id in the key."""
    rewound_to: Mapped[list[Any] | None] = mapped_column(Json)
    """Where a replay began. None once the broker has advanced to it; until then, broadcasts may lie before it."""


class WatcherReplay(Base):
    """A request to rewind a watcher in its log (contract, rule 18). The stream's owner deletes it when it is done."""

    __tablename__ = "watcher_replay"
    # The keys of re-emitted events contain the id, so no id may be used twice.
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    watcher_id: Mapped[int] = mapped_column(BigId, ForeignKey("watcher.id"), index=True)
    start: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """Replay messages that were published from this instant on. None: from the earliest message."""
    reemit: Mapped[bool] = mapped_column(Boolean)
    """Whether messages that already have events get events again, under new keys."""
    requested_at: Mapped[datetime] = mapped_column(UtcDateTime)
