"""How long the filter of a watcher that catches up may have a message open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import anyio

from triggerer.errors import AckTimeout
from triggerer.streams.catchup.processing.in_flight import MessagesInFlight
from triggerer.streams.clock import Clock


class FilterDeadline:
    """Cancels a filter that does not move past its open message in time.

    Args:
        taken: Where the open message is noted; whoever opens one sets `opened_at`.
        timeout: Seconds.
    """

    def __init__(
        self, name: str, in_flight: MessagesInFlight, clock: Clock, timeout: float
    ) -> None:
        self._name = name
        self._in_flight = in_flight
        self._clock = clock
        self._timeout = timeout
        self.opened_at = 0.0
        """When the filter was given its open message."""
        self._waits_for_store = False
        self._scope: anyio.CancelScope | None = None
        self._overdue: AckTimeout | None = None

    @contextmanager
    def limit(self) -> Iterator[None]:
        """Run a filter in this block.

        Raises:
            AckTimeout: It was cancelled, since it was late.
        """
        self._overdue = None
        with anyio.CancelScope() as self._scope:
            yield
        if self._overdue is not None:
            raise self._overdue

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """In this block the store is waited for, not the filter: its message has all its time again afterwards."""
        self._waits_for_store = True
        try:
            yield
        finally:
            self._waits_for_store = False
            self.opened_at = self._clock.monotonic()

    async def watch(self) -> NoReturn:
        """Cancel what is late, until cancelled. If the event loop was blocked, it gets as much more time."""
        clock, timeout = self._clock, self._timeout
        while True:
            due = (self.opened_at if self._is_running else clock.monotonic()) + timeout
            await clock.sleep_until(due)
            late = clock.monotonic() - due
            await clock.sleep_until(clock.monotonic() + late)
            if self._is_running and self.opened_at + timeout <= due:
                self._overdue = AckTimeout(
                    f"{self._name} did not resolve a message within {timeout:g} s while it caught up",
                    hint="its filter is stuck or too slow; raise shared_stream_ack_timeout if that is its nature",
                )
                assert self._scope is not None
                self._scope.cancel()
                self.opened_at = clock.monotonic()

    @property
    def _is_running(self) -> bool:
        return self._in_flight.open is not None and not self._waits_for_store
