"""The ack timeout of a filter that catches up."""

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
        in_flight: Tells whether the filter has a message open.
        timeout: The ack timeout in seconds. It begins at `opened_at`, which the caller sets for each new message.
    """

    def __init__(
        self, name: str, in_flight: MessagesInFlight, clock: Clock, timeout: float
    ) -> None:
        self._name = name
        self._in_flight = in_flight
        self._clock = clock
        self._timeout = timeout
        self.opened_at = 0.0
        """The time at which the filter received its open message."""
        self._waits_for_store = False
        self._scope: anyio.CancelScope | None = None
        self._overdue: AckTimeout | None = None

    @contextmanager
    def limit(self) -> Iterator[None]:
        """Limit the time of the filter that runs in this block.

        Raises:
            AckTimeout: The filter was late and was cancelled.
        """
        self._overdue = None
        with anyio.CancelScope() as self._scope:
            yield
        if self._overdue is not None:
            raise self._overdue

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspend the timeout while this block waits for the store. Afterwards the full timeout begins again."""
        self._waits_for_store = True
        try:
            yield
        finally:
            self._waits_for_store = False
            self.opened_at = self._clock.monotonic()

    async def watch(self) -> NoReturn:
        """Cancel the filter whenever it is late. Runs until cancelled.

        The time for which the event loop was blocked is added to the filter's timeout.
        """
        clock, timeout = self._clock, self._timeout
        while True:
            due = (self.opened_at if self._is_running else clock.monotonic()) + timeout
            await clock.sleep_until(due)
            late = clock.monotonic() - due
            await clock.sleep_until(clock.monotonic() + late)
            if self._is_running and self.opened_at + timeout <= due:
                self._overdue = AckTimeout(
                    f"{self._name} did not resolve a message within {timeout:g} s while it caught up",
                    hint="its filter is stuck or too slow; raise shared_stream_ack_timeout if a message may take"
                    " so long",
                )
                assert self._scope is not None
                self._scope.cancel()
                self.opened_at = clock.monotonic()

    @property
    def _is_running(self) -> bool:
        return self._in_flight.open is not None and not self._waits_for_store
