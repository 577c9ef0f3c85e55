"""A trigger event on its way from `triggerer.streams` to `triggerer.store`, which do not import each other."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Protocol


class Fence(NamedTuple):
    """Proof that an instance owns a stream. A write succeeds only while the stream's row has this owner and epoch."""

    stream_digest: str
    owner: str
    epoch: int


@dataclass(frozen=True, slots=True)
class WatcherRef:
    """A watcher and its asset. Each event of the watcher's trigger becomes one event of the asset."""

    watcher_id: int
    asset_id: int


@dataclass(frozen=True, slots=True)
class EventSource:
    """The watchers that receive a trigger's events, and the lease of the stream.

    The object never changes: when watchers come or go, a new object replaces it.
    """

    watchers: tuple[WatcherRef, ...]
    fence: Fence | None


class PendingEvent(Protocol):
    """One `TriggerEvent` that is not yet durable. The sink calls `complete` exactly once, on the event loop."""

    @property
    def published_at(self) -> datetime | None:
        """When the event's message was published; None: unknown. Read it during `submit_nowait`, not later."""

    def complete(self, error: Exception | None) -> None:
        """Report the result: None if the asset events are durable, else the error. Synchronous, cheap, never raises."""


class HasPayload(Protocol):
    """The part of a trigger event that the store reads."""

    @property
    def payload(self) -> Any: ...


class EventSink(Protocol):
    """The part of the store to which the streams submit events."""

    @property
    def is_full(self) -> bool:
        """True if the pending events of all streams together have reached the limit of bytes.

        In this case, call `wait_for_room` before submitting an event.
        """

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

        Args:
            yielded: The trigger's event. The store encodes its payload during the call, because the trigger may change
                the payload afterwards.
            source: The watchers that receive the event, and the lease.
            key: The idempotency key of the message, if the message has one.
            ordinal: The event's number among the events that the trigger derived from the message.
        """
