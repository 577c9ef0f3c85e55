"""Deletes topics of logs and creates them again under the same name."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from triggerer.testing.simulation.brokers.stream import Stream
    from triggerer.testing.simulation.kernel.drawn_faults import FaultInjector
    from triggerer.testing.simulation.kernel.scenario import Scenario

_MOST: Final = 3
"""The most recreations in a seed."""


class RecreatedWorld(Protocol):
    """The part of `triggerer.testing.simulation.worlds.world.World` that `Recreations` needs."""

    scenario: Scenario
    faults: FaultInjector
    streams: list[Stream]

    def trace(self, what: str, **details: Any) -> None: ...


class Recreations:
    """Recreates topics from time to time. This object survives restarts of the simulated process."""

    def __init__(self, world: RecreatedWorld) -> None:
        self._random = Random(f"{world.scenario.seed}/when it is made anew")
        self._every_s = self._random.choice((5.0, 20.0))
        self._recreated = 0
        self._world = world

    async def run(self) -> None:
        """Recreate topics until the faults end."""
        random, world = self._random, self._world
        while self._recreated < _MOST:
            await asyncio.sleep(random.expovariate(1.0 / self._every_s))
            stream = random.choice(world.streams)
            if world.faults.are_over:
                return
            self._recreated += 1
            world.trace("topic created again", stream=stream.key)
            stream.broker.recreate()
