"""The present instant, on SQLite and for submitted events: from the host, or from a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

Now = Callable[[], datetime]
NOW_KEY: Final = "triggerer.now"
"""The key of a session's `Now` in its `info`."""


def utc_now() -> datetime:
    """Return the host's time."""
    return datetime.now(UTC)


class TurnClock:
    """The host's time, read once in each turn of the event loop.

    Thus all events submitted in one turn have equal instants, which are read and converted once.
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
    """Return the `Now` of a session from `Database`."""
    now: Now = session.info.get(NOW_KEY, utc_now)
    return now
