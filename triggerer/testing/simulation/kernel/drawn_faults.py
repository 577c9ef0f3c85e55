"""Delays and faults, drawn from the seed."""

from __future__ import annotations

import asyncio
import random


class FaultInjector:
    """Draws whether a fault occurs and how long I/O takes. No fault occurs once `are_over` is true."""

    def __init__(
        self, seed: int, *, latency: float, slow_rate: float, is_instant: bool = False
    ) -> None:
        # Keep the text "chance": with another text, all random choices of every seed would change.
        self.random = random.Random(f"chance {seed}")
        self.are_over = False
        self._latency = latency
        self._slow_rate = slow_rate
        self.is_instant = is_instant
        """Whether I/O takes no virtual time: at most one turn of the event loop."""

    def occur(self, rate: float) -> bool:
        """Whether a fault occurs now, given its rate."""
        return rate > 0 and not self.are_over and self.random.random() < rate

    async def delay(self) -> None:
        """Wait as long as I/O would take. If `is_instant`, wait for at most one turn of the event loop."""
        drawn = self.random.random()
        if drawn < 0.4:
            return
        if drawn < 0.6 or self.is_instant:
            await asyncio.sleep(0)
        elif self.occur(self._slow_rate):
            await asyncio.sleep(self.random.uniform(1.0, 40.0))
        else:
            await asyncio.sleep(self.random.expovariate(1.0 / self._latency))
