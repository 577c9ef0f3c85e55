"""Replays: an operator lets watchers of a log read it again (`triggerer watchers replay`)."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any, Final, Protocol

from triggerer.errors import StoreError

if TYPE_CHECKING:
    from triggerer.testing.simulation.brokers.stream import Stream
    from triggerer.testing.simulation.database.model import Store
    from triggerer.testing.simulation.database.transactions import Database
    from triggerer.testing.simulation.kernel.drawn_faults import FaultInjector
    from triggerer.testing.simulation.kernel.scenario import Scenario

_MOST: Final = 4
"""How many replays a seed has at most. Each replay reads much of a log again."""


class ReplayedWorld(Protocol):
    """The part of `triggerer.testing.simulation.worlds.world.World` that `Replaying` needs."""

    scenario: Scenario
    faults: FaultInjector
    store: Store
    streams: list[Stream]

    def trace(self, what: str, **details: Any) -> None: ...


class Replaying:
    """Asks for replays from time to time. This object survives restarts of the simulated process."""

    def __init__(self, world: ReplayedWorld) -> None:
        self._random = Random(f"{world.scenario.seed}/what is replayed")
        self._every_s = self._random.choice((2.0, 5.0, 15.0))
        self._again_share = self._random.choice((0.0, 0.5, 1.0))
        self._asked = 0
        self._world = world

    async def run(self, database: Database) -> None:
        """Ask for replays until the faults end."""
        random, world = self._random, self._world
        while self._asked < _MOST:
            await asyncio.sleep(random.expovariate(1.0 / self._every_s))
            stream = random.choice(world.streams)
            if world.faults.are_over:
                return
            if not stream.watchers:
                continue
            watcher = random.choice(sorted(stream.watchers))
            published = [at for lane in stream.broker.lanes for at in lane.published]
            # The replay begins at the earliest message, or at the time of any message.
            start = random.choice((None, *published))
            is_reemitted = random.random() < self._again_share
            self._asked += 1
            world.trace("replay", watcher=watcher, start=start, reemit=is_reemitted)
            try:
                async with database.transaction() as session:
                    await session.ask_for_replay(stream.key, watcher, start, reemit=is_reemitted)
            except StoreError:
                # The operator does not try again, although the request may not be stored.
                continue
