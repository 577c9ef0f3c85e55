"""A clock that moves only when a test moves it."""

from __future__ import annotations

import heapq

import anyio
from anyio.lowlevel import checkpoint


class VirtualClock:
    """Implements `triggerer.streams.Clock`. Begins at zero."""

    def __init__(self) -> None:
        self._now = 0.0
        self._sleepers: list[tuple[float, int, anyio.Event]] = []
        self._count = 0

    def monotonic(self) -> float:
        return self._now

    async def sleep_until(self, deadline: float) -> None:
        if deadline <= self._now:
            await checkpoint()
            return
        wake = anyio.Event()
        self._count += 1
        heapq.heappush(self._sleepers, (deadline, self._count, wake))
        await wake.wait()

    def next_deadline(self) -> float | None:
        """When the next sleeper is due; None if no task sleeps."""
        return self._sleepers[0][0] if self._sleepers else None

    def move_to(self, instant: float) -> None:
        """Move forward and wake the sleepers that are due, in order. The sleepers run when the caller next awaits."""
        self._now = max(self._now, instant)
        while self._sleepers and self._sleepers[0][0] <= self._now:
            _, _, wake = heapq.heappop(self._sleepers)
            wake.set()
