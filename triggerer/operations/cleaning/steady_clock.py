"""Notices a wrong clock of the database. If the clock were years ahead, all data would seem old, and be deleted."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

_STEP: Final = timedelta(minutes=10)
_PATIENCE: Final = timedelta(hours=1)


def _since_boot() -> float:
    """Return the seconds since the machine started, including times when it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SteadyClock:
    """Detects that the database's clock was set, or that it differs from this machine's clock.

    Args:
        elapsed: Returns seconds by a clock that nobody can set.
        here: Returns this machine's time.
    """

    def __init__(
        self,
        elapsed: Callable[[], float] = _since_boot,
        here: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._elapsed = elapsed
        self._here = here
        self._seen: tuple[datetime, float] | None = None
        self._set_at: float | None = None

    def doubt(self, now: datetime) -> str | None:
        """Return why this time of the database cannot be trusted for deleting old data. None: it can be trusted.

        The time cannot be trusted for an hour after the database's clock was set. It also cannot be trusted while the
        database's clock and this machine's clock differ by more than an hour.
        """
        elapsed = self._elapsed()
        if self._seen is not None:
            seen, at = self._seen
            if abs(now - seen - timedelta(seconds=elapsed - at)) > _STEP:
                self._set_at = elapsed
        self._seen = (now, elapsed)
        if abs(now - self._here()) > _PATIENCE:
            return "the clocks of the database and of this machine differ by more than an hour"
        if self._set_at is not None and elapsed - self._set_at < _PATIENCE.total_seconds():
            return "the database's clock was set less than an hour ago"
        return None
