"""Calls functions after a delay, for a loop that has one thread."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable


class Timers:
    """Calls functions after a delay. The loop must call `run_due`."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        due = (time.monotonic() + seconds, next(self._numbers), function)
        heapq.heappush(self._due, due)

    @property
    def wait_s(self) -> float | None:
        """The time until the next call; None: no call is planned."""
        return max(0.0, self._due[0][0] - time.monotonic()) if self._due else None

    def run_due(self) -> None:
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()
