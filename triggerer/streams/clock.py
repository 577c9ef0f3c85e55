"""The clock of the runtime, which a test may replace, and the times that messages have."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

import anyio

_MOST_AHEAD: Final = timedelta(days=1)


class Clock(Protocol):
    """Monotonic seconds, and waiting for them to pass."""

    def monotonic(self) -> float: ...

    async def sleep_until(self, deadline: float) -> None:
        """Return at once, after a checkpoint, when `deadline` has passed."""


class SystemClock:
    """The machine's monotonic clock."""

    monotonic = staticmethod(time.monotonic)

    async def sleep_until(self, deadline: float) -> None:
        await anyio.sleep(max(0.0, deadline - time.monotonic()))


def published_at(event: Any) -> datetime | None:
    """Return when a message was published, if it says so by an aware time that is not far in the future."""
    try:
        at = getattr(event, "published_at", None)
    except Exception:
        return None
    if not isinstance(at, datetime) or at.tzinfo is None or at > datetime.now(UTC) + _MOST_AHEAD:
        return None
    return at
