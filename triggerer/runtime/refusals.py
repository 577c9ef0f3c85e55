"""What the store refuses of one trigger's events: said in the log, and shown with its watchers."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import structlog

from triggerer.errors import LeaseLost, StoreError
from triggerer.runtime.clock import Clock

_log = structlog.get_logger(__name__)

# A whole group commit may be refused, row by row, and each again with every delivery of its message.
_QUIET_S: Final = 1.0


class Refusals:
    """Counts them, and tells of one at most in a second.

    Args:
        name: The trigger's, for the log.
        on_told: Called when `latest` has changed.
    """

    __slots__ = ("_clock", "_name", "_on_told", "_told_at", "count", "latest")

    def __init__(self, name: str, clock: Clock, on_told: Callable[[], None]) -> None:
        self._name = name
        self._clock = clock
        self._on_told = on_told
        self._told_at = -math.inf
        self.count = 0
        self.latest: str | None = None
        """When it was, and why; None as long as there was none."""

    def note(self, error: Exception) -> None:
        """An event was not stored. Says nothing of what is no fault of its own: a lease lost, a silent store."""
        if not isinstance(error, StoreError) or isinstance(error, LeaseLost):
            return
        self.count += 1
        now = self._clock.monotonic()
        if now - self._told_at < _QUIET_S:
            return
        self._told_at = now
        at = datetime.now(UTC).isoformat(" ", "seconds")
        self.latest = f"an asset event was refused at {at}: {error}"
        _log.warning(
            "asset event refused", trigger=self._name, error=str(error), refused=self.count
        )
        self._on_told()
