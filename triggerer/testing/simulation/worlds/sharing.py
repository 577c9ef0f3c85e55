"""Decides which watchers with equal triggers share one trigger. The decision changes while messages come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from triggerer.store.watchers.hosting import TriggerRow
    from triggerer.testing.simulation.brokers.stream import Stream
    from triggerer.testing.simulation.kernel.drawn_faults import FaultInjector
    from triggerer.testing.simulation.kernel.scenario import Scenario

_SHARE: Final = 0.6
"""The probability that a declared watcher joins a sibling's equal trigger, if there is one."""
_MOST_MESSAGES: Final = 4
"""The most messages that are published just before a change."""
_SOON_S: Final = 0.2
"""The longest time from the last of these messages to the change, in seconds."""
_MOST_WATCHERS: Final = 6
"""No watcher is added to a stream with this many watchers."""


class SharingWorld(Protocol):
    """The part of `triggerer.testing.simulation.worlds.world.World` that `Sharing` needs."""

    scenario: Scenario
    faults: FaultInjector
    streams: list[Stream]

    def new_watcher(self, stream: Stream) -> None: ...

    def replace_watcher(self, stream: Stream, watcher: int) -> None: ...

    def delete_watcher(self, stream: Stream, watcher: int) -> None: ...

    def publish_in(self, stream: Stream, lane: int) -> None: ...

    def trace(self, what: str, **details: Any) -> None: ...


class Sharing:
    """Decides which watchers share a trigger. This object survives restarts of the simulated process."""

    def __init__(self, world: SharingWorld) -> None:
        self._random = Random(f"{world.scenario.seed}/who shares")
        self._world = world
        self._first_kind = self._random.randint(1, 6)
        self._kinds = self._random.choice((1, 1, 2))
        self._every_s = self._random.choice((1.0, 3.0, 10.0))

    def kind_of(self, watcher: int) -> int:
        """Return the kind of the watcher's filter, which never changes. Only watchers of one kind share a trigger."""
        return self._first_kind + watcher % self._kinds

    def choose(self, triggers: Sequence[TriggerRow]) -> TriggerRow | None:
        """Choose which of these equal triggers a declared watcher joins; None if it gets its own trigger."""
        if not triggers or self._random.random() >= _SHARE:
            return None
        return self._random.choice(triggers)

    async def run(self, announce: Callable[[Stream], None]) -> None:
        """Until the faults end, change which watchers share a trigger.

        Args:
            announce: Tells the hosts of the current process about a changed stream.
        """
        random, world = self._random, self._world
        while True:
            await asyncio.sleep(random.expovariate(1.0 / self._every_s))
            stream = random.choice(world.streams)
            lane = random.randrange(world.scenario.lanes)
            for _ in range(random.randint(0, _MOST_MESSAGES)):
                if not world.faults.are_over:
                    world.publish_in(stream, lane)
            await asyncio.sleep(random.uniform(0.0, _SOON_S))
            if world.faults.are_over:
                return
            self._change(stream)
            announce(stream)

    def _change(self, stream: Stream) -> None:
        random, world = self._random, self._world
        what = random.choices(("moves", "joins", "is deleted"), (6, 2, 1))[0]
        if not stream.watchers or (what == "joins" and len(stream.watchers) < _MOST_WATCHERS):
            world.trace("one more", stream=stream.key)
            world.new_watcher(stream)
            return
        watcher = random.choice(sorted(stream.watchers))
        world.trace("who shares", stream=stream.key, watcher=watcher, change=what)
        if what == "is deleted" and len(stream.watchers) > 1:
            world.delete_watcher(stream, watcher)
        else:
            world.replace_watcher(stream, watcher)
