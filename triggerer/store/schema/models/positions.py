"""The positions of watchers that have fallen behind in a log, and requests to replay a log.

A log, such as Kafka, can be read again from a position. A watcher falls behind when it misses a message that another
watcher resolved. From then on, a separate reader reads the message's lane (a Kafka partition) for this watcher.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Boolean, ForeignKey, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from triggerer.store.schema.models.base import Base, BigId, Json, UtcDateTime


class WatcherPosition(Base):
    """The position of a watcher that is behind in a lane of a log: its backlog begins there.

    The row is written under the stream's lease. It is deleted:

    - once the watcher has caught up and the broker has advanced to the position,
    - when the watcher's trigger moves to another stream,
    - with the watcher.
    """

    __tablename__ = "watcher_position"

    watcher_id: Mapped[int] = mapped_column(BigId, ForeignKey("watcher.id"), primary_key=True)
    lane: Mapped[str] = mapped_column(Text, primary_key=True)
    """The lane, as canonical JSON."""
    stream_digest: Mapped[str] = mapped_column(String(80), index=True)
    position: Mapped[list[Any]] = mapped_column(Json)
    """The first message whose events are not all durable, or the end of the lane, as `[incarnation, number]`.

    The incarnation tells a lane that was deleted and created again from its predecessor."""
    since: Mapped[datetime] = mapped_column(UtcDateTime)
    """When the watcher fell behind in the lane."""
    head: Mapped[int | None] = mapped_column(BigId)
    """The number that the lane's next message will get, as known at the last write. None: unknown.

    If the backlog is empty, `head` equals the number in `position`. The log itself may be further, with records that
    are no messages.
    """
    failures: Mapped[int] = mapped_column(server_default=text("0"))
    """How often the watcher has failed at the message at `position` since it fell behind."""
    reemit: Mapped[list[Any] | None] = mapped_column(Json)
    """`[replay, start, until]`: for messages between the positions `start` and `until`, events are created again.

    `replay` is the id of the replay request. It is a part of the new events' idempotency keys."""
    rewound_to: Mapped[list[Any] | None] = mapped_column(Json)
    """The position at which a replay began. None: there is no replay, or the broker has advanced to this position.

    Until the broker has advanced, the group may still broadcast messages from before this position."""


class WatcherReplay(Base):
    """A request to rewind a watcher in its log. The owner of the stream carries it out, and then deletes the row."""

    __tablename__ = "watcher_replay"
    # AUTOINCREMENT: the idempotency keys of re-emitted events contain this id, so no id may be used twice.
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    watcher_id: Mapped[int] = mapped_column(BigId, ForeignKey("watcher.id"), index=True)
    start: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """Replay messages that were published from this instant on. None: from the earliest message."""
    reemit: Mapped[bool] = mapped_column(Boolean)
    """True to create events again, under new keys, for messages that already have events."""
    is_restore: Mapped[bool] = mapped_column(Boolean, default=False)
    """True: the database was restored, so the stream pulls no message before it has carried out the request.

    A stream that is no log drops such a request without an error."""
    requested_at: Mapped[datetime] = mapped_column(UtcDateTime)
