"""What a producer without a broker has stored of its place in the source: one JSON value for each stream."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from triggerer.domain.events import EventSource, Fence, HasPayload, PendingEvent

MAX_STATE_BYTES: Final = 1024 * 1024
"""The most that a state may have as JSON: it is written anew at each change."""


@dataclass(frozen=True, slots=True)
class StateChange:
    """The state that a stream is to have, under its lease."""

    fence: Fence
    key: Hashable
    """The stream's key; the store goes by the fence."""
    value: bytes
    """JSON."""
    on_done: Callable[[Exception | None], None]
    """Called once, on the event loop: None when it is durable. Must not raise."""


class StateStore(Protocol):
    """Where the runtime has states stored."""

    async def load(self, fence: Fence, key: Hashable) -> Any:
        """The value that was stored last for the stream of this fence, and of this key; None if there is none.

        Raises:
            StoreError: It cannot be read now.
        """

    def submit_nowait(self, change: StateChange) -> None:
        """Take a change for the next transaction. Those of one stream are stored in this order."""


@dataclass(frozen=True, slots=True)
class Submission:
    """What `EventSink.submit_nowait` is given of one event."""

    event: PendingEvent
    yielded: HasPayload
    source: EventSource
    key: str | None
    ordinal: int


class EventsWithState(Protocol):
    """Where the runtime has events stored together with the state that passes them."""

    def submit_with_state_nowait(
        self, submissions: Sequence[Submission], change: StateChange
    ) -> None:
        """Take events as `EventSink.submit_nowait` does, in order, and the state for the same transaction.

        Either all of it is durable then, or the state is not: where one of the events is refused, or they do not fit
        into one transaction, `on_done` of the change is called with an error, and the other events are stored all the
        same.
        """
