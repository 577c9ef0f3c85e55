"""The host's clock, or a fake clock in tests.

On SQLite, `database_now` reads this clock. On PostgreSQL, `database_now` reads the server's clock, and only the
timestamps of events that triggers submit come from this clock. The steps that claim, start and end runs ignore a fake
clock: they call `datetime.now`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

Now = Callable[[], datetime]
NOW_KEY: Final = "triggerer.now"
"""The key of the session's clock (`Now`) in the dict `info` of a SQLAlchemy session."""


def utc_now() -> datetime:
    """Return the host's time."""
    return datetime.now(UTC)


class TurnClock:
    """The host's time, read only once in each turn of the event loop.

    So all events that are submitted in one turn have the same timestamp, which is then formatted only once.
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


def now_of(session: AsyncSession) -> Now:
    """Return the clock of a session that `Database` has opened."""
    now: Now = session.info.get(NOW_KEY, utc_now)
    return now
