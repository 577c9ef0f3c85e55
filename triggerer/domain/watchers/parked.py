"""Messages that the store keeps for one watcher that could not process them (contract, rule 18).

A stored message comes from a queue, which does not deliver the message again. The message waits until its watcher,
which is behind, reads it. A parked message has failed too often, and waits for an operator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from triggerer.domain.events import Fence


class ParkedState(StrEnum):
    """Why the store keeps a message for a watcher."""

    KEPT = "kept"
    """The message belongs to a backlog: the watcher receives it as soon as possible."""
    SET_ASIDE = "set_aside"
    """The message is parked: it waits until an operator replays or discards it."""


NO_LONGER_READ: Final = "its watcher was deleted, or reads another stream now"
"""The error of a message that is parked because its watcher no longer reads the stream."""


@dataclass(frozen=True, slots=True)
class SetAside:
    """Park a message that a watcher could not process, with the error."""

    lane: str
    """The message's lane as JSON, see `triggerer.domain.watchers.lane_positions.encode_lane`."""
    key: str
    """Identifies the message in its stream, across redeliveries."""
    data: bytes
    """The result of `SharedStreamProducer.dump_event`."""
    failures: int
    error: str
    traceback: str | None
    parked_at: datetime
    was_stored: bool = False
    """True if the watcher read the message from the store. If its row is gone by now, an operator has discarded the
    message, and the message is not parked."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Store a queue's message that the watcher has missed. The watcher receives its stored messages in order."""

    lane: str
    """The lane as JSON, see `triggerer.domain.watchers.lane_positions.encode_lane`."""
    key: str
    data: bytes
    parked_at: datetime


@dataclass(frozen=True, slots=True)
class Passed:
    """Delete the rows of stored messages, because their events are durable."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """Store the failure count of a stored message."""

    key: str
    failures: int


@dataclass(frozen=True, slots=True)
class Returned:
    """Park a replayed message again, because it failed again."""

    id: int
    error: str
    traceback: str | None


@dataclass(frozen=True, slots=True)
class Replayed:
    """Delete the row of a replayed message, because its events are durable."""

    id: int


@dataclass(frozen=True, slots=True)
class ParkedChange:
    """A change of a watcher's stored or parked messages, under the lease of its stream."""

    fence: Fence
    watcher_id: int
    what: SetAside | Stored | Passed | Failed | Returned | Replayed
    on_done: Callable[[Exception | None], None]
    """Called once, on the event loop: with None when the change is durable, or with the error, such as `ParkedFull`.

    Must not raise.
    """


class StoredMessage(NamedTuple):
    """A stored message that its watcher must receive."""

    id: int
    lane: str
    key: str
    data: bytes
    failures: int = 0


class StoredBacklog(NamedTuple):
    """A lane with stored messages for a watcher."""

    watcher_id: int
    lane: str
    since: datetime
    """When the oldest of the messages was stored."""
    messages: int | None = None
    """The number of messages; None: unknown."""


@dataclass(frozen=True, slots=True)
class ParkedBounds:
    """The limits for stored and parked messages. At a limit the store refuses more."""

    max_messages: int = 10_000
    """The most messages of one watcher."""
    max_bytes: int = 64 * 1024 * 1024
    """The most bytes of one watcher's messages."""
    total_bytes: int = 1024 * 1024 * 1024
    """The most bytes of all messages. A message that several watchers of a stream share counts once."""


class ParkedStore(Protocol):
    """The part of the store that keeps stored and parked messages for the streams."""

    def submit_nowait(self, change: ParkedChange) -> None:
        """Add a change to the next transaction. Changes of one watcher are stored in order."""

    async def read_stored(
        self, fence: Fence, watcher_id: int, after: int, limit: int, lane: str | None = None
    ) -> list[StoredMessage]:
        """Return the watcher's next stored messages with ids above `after`, in order.

        If messages are large, the list may be shorter than `limit`. The list is empty if no message is stored, or if
        the watcher now reads another stream, whose owner then delivers the messages.

        Args:
            lane: Return only messages of this lane; None: of all lanes.

        Raises:
            StoreError: The messages cannot be read now.
        """
