"""The runtime's clock, and the time at which a message was published."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

import anyio

_MOST_AHEAD: Final = timedelta(days=1)


class Clock(Protocol):
    """A monotonic clock in seconds. A task can wait until the clock shows a given time."""

    def monotonic(self) -> float: ...

    async def sleep_until(self, deadline: float) -> None:
        """Wait until `monotonic()` has reached `deadline`. Other tasks get a turn even if `deadline` is in the past."""


class SystemClock:
    """The machine's monotonic clock."""

    monotonic = staticmethod(time.monotonic)

    async def sleep_until(self, deadline: float) -> None:
        await anyio.sleep(max(0.0, deadline - time.monotonic()))


def published_at(event: Any) -> datetime | None:
    """Return the message's `published_at`, or None if it is missing, naive, or over a day in the future."""
    try:
        at = getattr(event, "published_at", None)
    except Exception:
        return None
    if not isinstance(at, datetime) or at.tzinfo is None or at > datetime.now(UTC) + _MOST_AHEAD:
        return None
    return at
