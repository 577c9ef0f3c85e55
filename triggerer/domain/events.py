"""A trigger event on its way from the runtime into the store; the two meet only here."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol


class Fence(NamedTuple):
    """Proof of ownership of a stream: a write is taken only while the store still shows this owner and epoch."""

    stream_digest: str
    owner: str
    epoch: int


class WatcherRef(NamedTuple):
    """A watcher that gets one asset event for each event of the trigger."""

    watcher_id: int
    asset_id: int


class EventSource(NamedTuple):
    """Where a trigger's events go, and under which lease. Replaced, never changed, when watchers come or go."""

    watchers: tuple[WatcherRef, ...]
    fence: Fence | None


class UnsettledEvent(Protocol):
    """One `TriggerEvent` that is not yet durable. The sink settles each exactly once, on the event loop.

    What it carries is read while it is submitted: nothing but the sink's own form of it is kept while the store lags.
    """

    @property
    def payload(self) -> Any: ...

    @property
    def source(self) -> EventSource: ...

    @property
    def idempotency_key(self) -> str | None: ...

    @property
    def ordinal(self) -> int: ...

    def settle(self, error: Exception | None) -> None:
        """Confirm (None: its asset events are durable) or refuse. Synchronous and cheap; never raises."""


class EventSink(Protocol):
    """What the runtime is handed to have its events stored."""

    def submit_nowait(self, event: UnsettledEvent) -> None:
        """Take an event for the next group commit. Never blocks; the runtime bounds how many are unsettled."""
