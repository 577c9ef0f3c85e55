"""Tracks whether this process can use the database, and logs outages for all parts of the service."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from triggerer.domain.instants import readable
from triggerer.errors import TriggererError
from triggerer.observability.logging_setup import LazyLogger

_log = LazyLogger(__name__)

_FIRST_GAP_S: Final = 5.0
_LONGEST_GAP_S: Final = 300.0
# An outage that begins within 60 seconds after another outage counts as the same outage: the gap between log lines
# keeps growing. So a database that fails again and again does not fill the log.
_SEPARATE_AFTER_S: Final = 60.0


class Use(StrEnum):
    """The two uses of the database that can fail independently. For instance, a standby serves reads but no writes."""

    READS = "reads"
    WRITES = "writes"


@dataclass(slots=True)
class _Outage:
    """The current outage for reading or for writing, or the last outage if the database works now."""

    since: datetime | None = None
    began_at: float = 0.0
    ended_at: float = float("-inf")
    gap_s: float = _FIRST_GAP_S
    next_line_at: float = 0.0
    logged_errors: set[str] = field(default_factory=set)
    is_logged: bool = False
    reason: str = ""


class Availability:
    """Records whether reading and writing the database succeeds. Errors that no retry can overcome are not recorded.

    An outage is logged when it begins, for each new reason, at growing intervals, and when it ends.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._outages: dict[Use, _Outage] = {}
        self._lasting: set[Use] = set()
        self.on_change: Callable[[], object] | None = None
        """Called when an outage begins, gets another reason, or ends."""
        self.is_silent = False
        """True to log nothing, for a command that prints the error itself when it ends."""

    @property
    def trouble(self) -> str | None:
        """One line that says since when the database is away, and why; None if it works."""
        for use in sorted(self._lasting):
            outage = self._outages[use]
            assert outage.since is not None
            return f"the database has refused {use} since {readable(outage.since)}: {outage.reason}"
        return None

    def has_outage(self, use: Use) -> bool:
        """Return True during an outage of this use."""
        return use in self._lasting

    def record_failure(self, use: Use, error: TriggererError) -> None:
        """Record that the database failed a request."""
        now = self._clock()
        outage = self._outages.setdefault(use, _Outage())
        if use not in self._lasting:
            self._lasting.add(use)
            outage.since, outage.began_at, outage.is_logged = datetime.now(UTC), now, False
            if now - outage.ended_at > _SEPARATE_AFTER_S:
                outage.logged_errors.clear()
                outage.gap_s, outage.next_line_at = _FIRST_GAP_S, now
        is_new = error.message != outage.reason
        outage.reason = error.message
        if not self.is_silent and (
            error.message not in outage.logged_errors or now >= outage.next_line_at
        ):
            outage.logged_errors.add(error.message)
            outage.is_logged = True
            outage.next_line_at = now + outage.gap_s
            outage.gap_s = min(2 * outage.gap_s, _LONGEST_GAP_S)
            _log.error(
                "the database is away",
                database=self._name,
                refuses=str(use),
                error=error.message,
                hint=error.hint,
                for_s=round(now - outage.began_at, 1),
            )
            is_new = True
        if is_new and self.on_change is not None:
            self.on_change()

    def record_success(self, use: Use) -> None:
        """Record that the database served a request."""
        if use in self._lasting:
            self._end(use)

    def _end(self, use: Use) -> None:
        now = self._clock()
        outage = self._outages[use]
        self._lasting.discard(use)
        outage.ended_at = now
        outage.reason = ""
        if outage.is_logged:
            _log.info(
                "the database is back",
                database=self._name,
                takes=str(use),
                after_s=round(now - outage.began_at, 1),
            )
        if self.on_change is not None:
            self.on_change()
