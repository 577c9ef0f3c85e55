"""A trigger event on its way from the runtime into the store; the two meet only here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


class Fence(NamedTuple):
    """Proof of ownership of a stream: a write is taken only while the store still shows this owner and epoch."""

    stream_digest: str
    owner: str
    epoch: int


@dataclass(frozen=True, slots=True)
class WatcherRef:
    """A watcher that gets one asset event for each event of the trigger."""

    watcher_id: int
    asset_id: int


@dataclass(frozen=True, slots=True)
class EventSource:
    """Where a trigger's events go, and under which lease. Replaced, never changed, when watchers come or go."""

    watchers: tuple[WatcherRef, ...]
    fence: Fence | None


class PendingEvent(Protocol):
    """One `TriggerEvent` that is not yet durable. The sink completes each exactly once, on the event loop."""

    def complete(self, error: Exception | None) -> None:
        """Confirm (None: its asset events are durable) or refuse. Synchronous and cheap; never raises."""


class HasPayload(Protocol):
    """What a trigger yielded."""

    @property
    def payload(self) -> Any: ...


class EventSink(Protocol):
    """Where the runtime submits its events, to have them stored."""

    @property
    def is_full(self) -> bool:
        """Whether so many bytes wait, of all streams together, that who submits has to `wait_for_room` first."""

    async def wait_for_room(self) -> None:
        """Wait until it is not full; at once if it is not."""

    def submit_nowait(
        self,
        event: PendingEvent,
        yielded: HasPayload,
        source: EventSource,
        key: str | None,
        ordinal: int,
    ) -> None:
        """Take an event for the next group commit, also if it is full. Never blocks.

        The runtime limits how many are pending of each stream.

        Args:
            yielded: Its payload is read here, since it may change afterwards. A store encodes it, so that what the
                trigger yielded need not be kept while the store lags.
            source: The watchers that get it, and the lease.
            key: The idempotency key of the message that it derives from, if it has one.
            ordinal: Its number among the events that the trigger derived from that message.
        """
