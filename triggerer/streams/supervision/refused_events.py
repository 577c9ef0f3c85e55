"""Logs the events of one trigger that the store has refused, and describes them for the reports of its watchers."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from typing import Final

import structlog

from triggerer.domain.instants import readable
from triggerer.errors import LeaseLost, NotSetAside, StoreError
from triggerer.streams.clock import Clock

_log = structlog.get_logger(__name__)

# At most one refusal per second is reported. The store may refuse thousands of rows at once, and again after each
# redelivery.
_QUIET_S: Final = 1.0


class RefusedEvents:
    """Counts refused events, and reports at most one refusal per second.

    Args:
        name: The trigger's name, for the log.
        now: Returns the current time in UTC. `latest` shows the time of the last reported refusal.
        on_report: Called when a refusal is reported.
    """

    __slots__ = ("_at", "_clock", "_latest", "_now", "_on_report", "_reported_at", "count", "name")

    def __init__(
        self,
        name: str,
        clock: Clock,
        now: Callable[[], datetime],
        on_report: Callable[[], None],
    ) -> None:
        self.name = name
        self._clock = clock
        self._now = now
        self._on_report = on_report
        self._reported_at = -math.inf
        self._latest: Exception | None = None
        self._at = ""
        self.count = 0
        """The number of asset events that the store refused. Messages that it refused to park are not counted."""

    @property
    def latest(self) -> str | None:
        """Describes the last refusal for users. None: nothing was refused."""
        if self._latest is None:
            return None
        if isinstance(self._latest, NotSetAside):
            return f"a message cannot be parked, at {self._at}: {self._latest}"
        events = "an asset event was" if self.count == 1 else f"{self.count} asset events were"
        return f"{events} refused, at {self._at}: {self._latest}"

    def record(self, error: Exception) -> None:
        """Record that the store refused an event, or refused to park a rejected message.

        Errors that are no refusal by the store are ignored, such as a lost lease or an ack timeout.
        """
        if not isinstance(error, StoreError) or isinstance(error, LeaseLost):
            return
        is_event = not isinstance(error, NotSetAside)
        self.count += is_event
        self._latest = error
        now = self._clock.monotonic()
        if now - self._reported_at < _QUIET_S:
            return
        self._reported_at = now
        self._at = readable(self._now())
        if is_event:
            _log.warning(
                "asset event refused", trigger=self.name, error=str(error), refused=self.count
            )
        else:
            _log.warning("message not parked", trigger=self.name, error=str(error))
        self._on_report()
