"""The clock of the runtime, which a test may replace."""

from __future__ import annotations

import time
from typing import Protocol

import anyio


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
