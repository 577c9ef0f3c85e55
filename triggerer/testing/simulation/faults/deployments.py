"""Deployments: a watcher gets other arguments while messages keep coming."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from triggerer.testing.simulation.brokers.stream import Stream
    from triggerer.testing.simulation.kernel.drawn_faults import FaultInjector
    from triggerer.testing.simulation.kernel.scenario import Scenario

_EVERY_S: Final = 2.0
"""The average time until the next deployment begins."""
_TRAFFIC_S: Final = (0.1, 2.0)
"""The shortest and the longest time between two messages."""
_MESSAGES: Final = 4
"""The number of messages that come after a deployment."""


class DeployedWorld(Protocol):
    """The part of `triggerer.testing.simulation.worlds.world.World` that `Deployments` needs."""

    scenario: Scenario
    faults: FaultInjector
    streams: list[Stream]

    def replace_watcher(self, stream: Stream, watcher: int) -> None: ...

    def publish_in(self, stream: Stream, lane: int) -> None: ...

    def trace(self, what: str, **details: Any) -> None: ...


class Deployments:
    """Changes the arguments of watchers while messages come. This object survives restarts of the simulated process."""

    def __init__(self, world: DeployedWorld) -> None:
        self.is_under_way = False
        """True from the beginning of a deployment to the last of the messages that follow it.

        Classes take time to load while this is true, and at no other time.
        """
        self._random = Random(f"{world.scenario.seed}/what is deployed")
        self._world = world

    async def run(self, announce: Callable[[Stream], None]) -> None:
        """Deploy until the faults end.

        Args:
            announce: Tells the hosts of the current process about a changed stream.
        """
        random, world = self._random, self._world
        self.is_under_way = False
        while True:
            await asyncio.sleep(random.expovariate(1.0 / _EVERY_S))
            stream = random.choice(world.streams)
            if world.faults.are_over:
                return
            if not stream.watchers:
                continue
            self.is_under_way = True
            watcher = random.choice(sorted(stream.watchers))
            world.trace("deploy", stream=stream.key, watcher=watcher)
            world.replace_watcher(stream, watcher)
            announce(stream)
            for _ in range(_MESSAGES):
                await asyncio.sleep(random.uniform(*_TRAFFIC_S))
                self._publish(stream)
            self.is_under_way = False

    def _publish(self, stream: Stream) -> None:
        if not self._world.faults.are_over:
            lane = self._random.randrange(self._world.scenario.lanes)
            self._world.publish_in(stream, lane)
