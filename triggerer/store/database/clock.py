"""The clock for a SQLite database, and for events that triggers submit.

It is the host's clock, or a fake clock in tests. With PostgreSQL, it is only for the submitted events: leases and most
other instants come from the clock of the database server, see `database_now`. The steps that claim, begin and end runs
read their host's clock directly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

Now = Callable[[], datetime]
NOW_KEY: Final = "triggerer.now"
"""The key under which the `info` of a SQLAlchemy session has the session's `Now`."""


def utc_now() -> datetime:
    """Return the host's time."""
    return datetime.now(UTC)


class TurnClock:
    """The host's time, read once in each turn of the event loop.

    So all events that are submitted in one turn have the same instant, which is read and formatted only once.
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
