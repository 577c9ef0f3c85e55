"""A trigger event on its way from the streams into the store. Both sides import only this module."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Protocol


class Fence(NamedTuple):
    """Proof of ownership of a stream. A write succeeds only while the store shows this owner and epoch."""

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
    """The watchers that receive a trigger's events, and the lease. Replaced, never changed, as watchers come and go."""

    watchers: tuple[WatcherRef, ...]
    fence: Fence | None


class PendingEvent(Protocol):
    """One `TriggerEvent` that is not yet durable. The sink completes each exactly once, on the event loop."""

    @property
    def published_at(self) -> datetime | None:
        """When its message was published. None: unknown, or asked too late. Ask while the event is submitted."""

    def complete(self, error: Exception | None) -> None:
        """Confirm that the asset events are durable (None), or refuse. Synchronous and cheap; never raises."""


class HasPayload(Protocol):
    """A trigger event, as far as the store reads it."""

    @property
    def payload(self) -> Any: ...


class EventSink(Protocol):
    """The store, as far as the streams see it: they submit events to be stored."""

    @property
    def is_full(self) -> bool:
        """True if the waiting bytes of all streams reach the limit. Then call `wait_for_room` before submitting."""

    async def wait_for_room(self) -> None:
        """Return once the sink is not full."""

    def submit_nowait(
        self,
        event: PendingEvent,
        yielded: HasPayload,
        source: EventSource,
        key: str | None,
        ordinal: int,
    ) -> None:
        """Add an event to the next group commit, even if the sink is full. Never blocks.

        The streams limit the number of pending events per stream.

        Args:
            yielded: The trigger's event. Its payload is read during the call, because the trigger may change it
                afterwards. The store encodes it at once and does not retain the object.
            source: The watchers that receive the event, and the lease.
            key: The idempotency key of the message, if the message has one.
            ordinal: The event's number among the events that the trigger derived from the message.
        """
