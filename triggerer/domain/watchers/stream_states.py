"""The stored state of a stream whose source remembers no position, such as a URL or a directory: one JSON value."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from triggerer.domain.events import EventSource, Fence, HasPayload, PendingEvent

MAX_STATE_BYTES: Final = 1024 * 1024
"""The largest state, as JSON. Each change writes the whole state."""


@dataclass(frozen=True, slots=True)
class StateChange:
    """A stream's new state, which the store writes under the lease of the stream."""

    fence: Fence
    key: Hashable
    """The stream's key, for test doubles. The real store finds the stream by the fence."""
    value: bytes
    """The state as JSON."""
    on_done: Callable[[Exception | None], None]
    """Called once, on the event loop: with None when the state is durable, or with the error. Must not raise."""


class StateStore(Protocol):
    """The part of the store that loads and stores the states of streams."""

    async def load(self, fence: Fence, key: Hashable) -> Any:
        """Return the last stored state of the stream with this fence and key; None: no state.

        Raises:
            StoreError: The state cannot be read now.
        """

    def submit_nowait(self, change: StateChange) -> None:
        """Add a change to the next transaction. Changes of one stream are stored in order."""


@dataclass(frozen=True, slots=True)
class Submission:
    """The arguments of `EventSink.submit_nowait` for one event."""

    event: PendingEvent
    yielded: HasPayload
    source: EventSource
    key: str | None
    ordinal: int


class EventsWithState(Protocol):
    """The part of the store that stores events and the stream's next state in one transaction."""

    def submit_with_state_nowait(
        self, submissions: Sequence[Submission], change: StateChange
    ) -> None:
        """Add events, as `EventSink.submit_nowait` does, and the stream's new state to one transaction.

        If an event is refused, or the events do not fit into one transaction, the state is not stored. Then
        `change.on_done` is called with an error. The events that are not refused are stored nevertheless.
        """
