"""Messages that the store keeps for one watcher: those that it could not take (contract, rule 18)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from triggerer.domain.events import Fence


class ParkedState(StrEnum):
    """What becomes of a parked message by itself."""

    KEPT = "kept"
    """The watcher is given it, as soon as it can be."""
    SET_ASIDE = "set_aside"
    """Nothing, until somebody replays or discards it."""


READS_IT_NO_MORE: Final = "its watcher was deleted, or reads another stream now"
"""Why a message is set aside that was kept, or was to be, for a watcher that does not read its stream any more."""


@dataclass(frozen=True, slots=True)
class SetAside:
    """A message that a watcher could not take, with the evidence."""

    lane: str
    """See `triggerer.domain.watchers.lane_positions.encode_lane`."""
    key: str
    """Identifies the message in its stream, across redeliveries."""
    data: bytes
    """As `SharedStreamProducer.dump_event` wrote it."""
    failures: int
    error: str
    traceback: str | None
    parked_at: datetime
    was_kept: bool = False
    """Whether it was read from its row: where that is gone, somebody has discarded the message, and it stays gone."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A message of a queue that a watcher has missed: it is given it later, in the order in which they were kept."""

    lane: str
    """As in `SetAside`."""
    key: str
    data: bytes
    parked_at: datetime


@dataclass(frozen=True, slots=True)
class Passed:
    """Messages whose events are durable: their rows go, as far as they are still kept."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """A message that is kept, and with which the watcher has failed so often by now."""

    key: str
    failures: int


@dataclass(frozen=True, slots=True)
class Returned:
    """A message that was replayed, and failed again: it is set aside as before."""

    id: int
    error: str
    traceback: str | None


@dataclass(frozen=True, slots=True)
class Replayed:
    """A message that was replayed, and whose events are durable: its row goes."""

    id: int


@dataclass(frozen=True, slots=True)
class ParkedChange:
    """What is to be stored of a message of a watcher, under the lease of its stream."""

    fence: Fence
    watcher_id: int
    what: SetAside | Kept | Passed | Failed | Returned | Replayed
    on_done: Callable[[Exception | None], None]
    """Called once, on the event loop: None when it is durable, `ParkedFull` at a bound. Must not raise."""


class KeptMessage(NamedTuple):
    """A message that is to be given to its watcher."""

    id: int
    lane: str
    key: str
    data: bytes
    failures: int = 0


class KeptLane(NamedTuple):
    """A lane in which messages are kept for a watcher."""

    watcher_id: int
    lane: str
    since: datetime
    """When the oldest of them was parked."""
    messages: int | None = None
    """How many there are; None: unknown."""


@dataclass(frozen=True, slots=True)
class ParkedBounds:
    """How much may be parked. At a bound nothing more is."""

    max_messages: int = 10_000
    """Of one watcher."""
    max_bytes: int = 64 * 1024 * 1024
    """Of the messages of one watcher."""
    total_bytes: int = 1024 * 1024 * 1024
    """Of all that is kept, each message counted once for each stream."""


class ParkedStore(Protocol):
    """Where the runtime has messages parked."""

    def submit_nowait(self, change: ParkedChange) -> None:
        """Take a change for the next transaction. Those of one watcher are stored in this order."""

    async def read_kept(
        self, fence: Fence, watcher_id: int, after: int, limit: int, lane: str | None = None
    ) -> list[KeptMessage]:
        """The next messages that are kept for a watcher, those with ids above `after`, in order.

        Up to `limit`, and fewer where they are large; none only where there are none, or the watcher reads another
        stream than that of the lease: they are for its owner to give.

        Args:
            lane: Only those of this lane.

        Raises:
            StoreError: They cannot be read now.
        """
