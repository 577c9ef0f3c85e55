"""What the store refuses of one trigger's events: said in the log, and shown with its watchers."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
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
        now: In UTC, for whoever reads `latest`.
        on_told: Called when there is something to be shown.
    """

    __slots__ = ("_at", "_clock", "_latest", "_name", "_now", "_on_told", "_told_at", "count")

    def __init__(
        self,
        name: str,
        clock: Clock,
        now: Callable[[], datetime],
        on_told: Callable[[], None],
    ) -> None:
        self._name = name
        self._clock = clock
        self._now = now
        self._on_told = on_told
        self._told_at = -math.inf
        self._latest: Exception | None = None
        self._at = ""
        self.count = 0

    @property
    def latest(self) -> str | None:
        """How many there were, when the last one was told of, and why the last one was; None if there was none."""
        if self._latest is None:
            return None
        events = "an asset event was" if self.count == 1 else f"{self.count} asset events were"
        return f"{events} refused, at {self._at}: {self._latest}"

    def note(self, error: Exception) -> None:
        """An event was not stored. Counts not where its stream is somebody else's by now."""
        if not isinstance(error, StoreError) or isinstance(error, LeaseLost):
            return
        self.count += 1
        self._latest = error
        now = self._clock.monotonic()
        if now - self._told_at < _QUIET_S:
            return
        self._told_at = now
        self._at = self._now().isoformat(" ", "seconds")
        _log.warning(
            "asset event refused", trigger=self._name, error=str(error), refused=self.count
        )
        self._on_told()
