"""Simulates an operator who decides about parked messages. Also makes floods: many messages that arrive at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any, Final, Protocol

from triggerer.errors import StoreError

if TYPE_CHECKING:
    from triggerer.testing.simulation.brokers.stream import Stream
    from triggerer.testing.simulation.database.model import Store
    from triggerer.testing.simulation.database.parked_writes import Decision
    from triggerer.testing.simulation.database.transactions import Database
    from triggerer.testing.simulation.faults.catching_up import CatchingUpDraws
    from triggerer.testing.simulation.kernel.delivery import ParkedRow
    from triggerer.testing.simulation.kernel.drawn_faults import FaultInjector
    from triggerer.testing.simulation.kernel.scenario import Scenario

_MOST_AT_ONCE: Final = 12
"""The most messages in a flood."""
_AFTER_FAULTS_S: Final = 5.0
"""After the faults, the average time between two rounds of the operator's decisions. These rounds continue, because a
stream may wait until a decision makes room for its messages."""


class TidiedWorld(Protocol):
    """The part of `triggerer.testing.simulation.worlds.world.World` that `Operator` needs."""

    scenario: Scenario
    catching_up_draws: CatchingUpDraws
    faults: FaultInjector
    store: Store
    streams: list[Stream]

    def publish_in(self, stream: Stream, lane: int) -> None: ...

    def trace(self, what: str, **details: Any) -> None: ...


class Operator:
    """Replays and discards parked messages. This object survives restarts of the simulated processes.

    After the faults the operator replays each message at most once, and discards a message that is parked again.
    """

    def __init__(self, world: TidiedWorld) -> None:
        self._random = Random(f"{world.scenario.seed}/person")
        is_queue = world.catching_up_draws.is_queue
        self._deciding = (
            self._random if is_queue else Random(f"{world.scenario.seed}/what is tidied")
        )
        self._world = world
        self._flooded = 0
        self._replayed: Counter[tuple[int, str]] = Counter()

    async def flood(self) -> None:
        """Publish many messages of one lane at once, again and again."""
        every_s = self._world.catching_up_draws.flooded_every_s
        while every_s is not None and self._flooded < self._world.catching_up_draws.most_in_floods:
            await asyncio.sleep(self._random.expovariate(1.0 / every_s))
            if self._world.faults.are_over:
                return
            stream = self._random.choice(self._world.streams)
            lane = self._random.randrange(self._world.scenario.lanes)
            self._world.trace("flood", stream=stream.key, lane=lane)
            count = self._random.randint(2, _MOST_AT_ONCE)
            self._flooded += count
            for _ in range(count):
                self._world.publish_in(stream, lane)

    async def tidy(self, database: Database) -> None:
        """Decide about parked messages, from time to time."""
        while True:
            is_over = self._world.faults.are_over
            every_s = _AFTER_FAULTS_S if is_over else self._world.catching_up_draws.tidied_every_s
            await asyncio.sleep(self._deciding.expovariate(1.0 / every_s))
            if not self._world.store.parked:
                continue
            try:
                async with database.transaction() as session:
                    await session.decide_parked(self._decide)
            except StoreError:
                # The operator decides again later. The decision may be stored nevertheless, if the outcome is unknown.
                continue

    def _decide(self, row: ParkedRow) -> Decision:
        world, at = self._world, (row.watcher, row.key)
        if row.is_stored:
            # The watcher gets a stored message without the operator, so the operator rarely discards such a message.
            is_discarded = not world.faults.are_over and self._deciding.random() < 0.02
            return "discard" if is_discarded else None
        if self._deciding.random() < 0.3:
            return None
        is_declared = any(row.watcher in stream.watchers for stream in world.streams)
        may_replay = is_declared and not (world.faults.are_over and self._replayed[at])
        if may_replay and self._deciding.random() < world.catching_up_draws.replay_share:
            self._replayed[at] += world.faults.are_over
            return "replay"
        return "discard"
