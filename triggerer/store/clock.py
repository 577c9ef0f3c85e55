"""The clock of a SQLite database: the host's, or a test's."""

from __future__ import annotations

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


def clock_of(session: AsyncSession) -> Clock:
    """The clock of a session that `Database` gave."""
    clock: Clock = session.info.get(CLOCK, utc_now)
    return clock
