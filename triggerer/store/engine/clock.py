"""The clock of a SQLite database, and of whoever hands over events: the host's, or a test's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

Clock = Callable[[], datetime]
CLOCK: Final = "triggerer.clock"
"""Where a session's `info` has it."""


def utc_now() -> datetime:
    """The host's clock."""
    return datetime.now(UTC)


class TurnClock:
    """The host's clock, read once in each turn of the event loop: what comes in one turn is of one instant.

    So one reading, and one conversion of it, serve all that is submitted together.
    """

    def __init__(self) -> None:
        self._now: datetime | None = None

    def now(self) -> datetime:
        now = self._now
        if now is None:
            now = self._now = utc_now()
            asyncio.get_running_loop().call_soon(self._forget)
        return now

    def _forget(self) -> None:
        self._now = None


def clock_of(session: AsyncSession) -> Clock:
    """The clock of a session that `Database` gave."""
    clock: Clock = session.info.get(CLOCK, utc_now)
    return clock
