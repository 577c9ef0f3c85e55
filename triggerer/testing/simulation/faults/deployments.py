"""What a deployment does to watchers that are at work: one gets other arguments while messages go on coming."""

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
"""How long it takes on average until one begins."""
_TRAFFIC_S: Final = (0.1, 2.0)
"""How long after the one before each message comes."""
_MESSAGES: Final = 4
"""So many come."""


class DeployedWorld(Protocol):
    """What `Deployments` needs of the world (`triggerer.testing.simulation.worlds.world.World`)."""

    scenario: Scenario
    faults: FaultInjector
    streams: list[Stream]

    def replace_watcher(self, stream: Stream, watcher: int) -> None: ...

    def publish_in(self, stream: Stream, lane: int) -> None: ...

    def trace(self, what: str, **details: Any) -> None: ...


class Deployments:
    """Changes watchers' arguments in the midst of their streams' traffic; outlives every process."""

    def __init__(self, world: DeployedWorld) -> None:
        self.is_under_way = False
        """Whether one has begun, and not all of its messages have come: classes take time to load then, not before."""
        self._random = Random(f"{world.scenario.seed}/what is deployed")
        self._world = world

    async def run(self, announce: Callable[[Stream], None]) -> None:
        """Deploy until nothing goes wrong any more; `announce` tells the hosts of a process."""
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
