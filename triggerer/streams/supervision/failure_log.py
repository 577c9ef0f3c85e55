"""Logs the failures of a trigger. A failure that repeats is a warning only now and then."""

from __future__ import annotations

from typing import Final

import structlog

from triggerer.backoff import warn_seldom
from triggerer.streams.clock import Clock

_log = structlog.get_logger(__name__)

_FORGOTTEN_AFTER_S: Final = 600.0
"""If a trigger has not failed for this time, its next failure is logged even if the error is the same."""


class FailureLog:
    """The failures of one trigger."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._error = ""
        """The newest failure, as text."""
        self._repeats = 0
        """How often the newest failure has come in a row."""
        self._failed_at = 0.0

    def add(self, trigger: str, error: Exception) -> None:
        """Log a failure as a warning. A repeated failure is a warning at its 4th, 16th, 64th … time, else at debug."""
        text, now = repr(error), self._clock.monotonic()
        if text != self._error or now > self._failed_at + _FORGOTTEN_AFTER_S:
            self._repeats = 0
        self._error, self._failed_at = text, now
        self._repeats += 1
        warn_seldom(_log, self._repeats, "trigger failed", trigger=trigger, error=text)
