"""Everything that is left to chance, drawn from the seed: delays, and what goes wrong."""

from __future__ import annotations

import asyncio
import random


class FaultInjector:
    """The only source of randomness of a simulation. Once they are over, nothing goes wrong any more."""

    def __init__(self, seed: int, *, latency: float, slow_rate: float) -> None:
        # Another text would give every seed another meaning.
        self.random = random.Random(f"chance {seed}")
        self.are_over = False
        self._latency = latency
        self._slow_rate = slow_rate

    def occur(self, rate: float) -> bool:
        """Whether something goes wrong that does so with this rate."""
        return rate > 0 and not self.are_over and self.random.random() < rate

    async def delay(self) -> None:
        """As long as I/O takes: often nothing, mostly little, sometimes much too long."""
        drawn = self.random.random()
        if drawn < 0.4:
            return
        if drawn < 0.6:
            await asyncio.sleep(0)
        elif self.occur(self._slow_rate):
            await asyncio.sleep(self.random.uniform(1.0, 40.0))
        else:
            await asyncio.sleep(self.random.expovariate(1.0 / self._latency))
