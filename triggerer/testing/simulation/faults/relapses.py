"""Relapses: watchers are unwell for a moment, and get other arguments just when they have caught up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio

from triggerer.synchronization import AutoResetEvent

if TYPE_CHECKING:
    from triggerer.testing.simulation.brokers.stream import Stream
    from triggerer.testing.simulation.faults.catching_up import Health
    from triggerer.testing.simulation.kernel.delivery import Message
    from triggerer.testing.simulation.kernel.drawn_faults import FaultInjector
    from triggerer.testing.simulation.kernel.scenario import Scenario

_EVERY_S: Final = 1.0
"""The average time until a watcher becomes unwell."""
_SHARE: Final = 0.5
"""The probability that a watcher gets other arguments after it has read a lane to its end."""
_SOON_S: Final = 0.1
"""The longest time from reading the lane's end until the watcher gets other arguments."""
_DELETION_S: Final = 0.5
"""The longest time that the deletion of a position takes."""
_PAUSE_S: Final = 0.2
"""The longest time until a watcher with other arguments becomes unwell."""
_MESSAGES: Final = 3
"""The most messages that come in the lane of an unwell watcher."""
_APART_S: Final = 0.3
"""The longest time between two messages for an unwell watcher."""


class RelapsingWorld(Protocol):
    """The part of `triggerer.testing.simulation.worlds.world.World` that `Relapses` needs."""

    scenario: Scenario
    faults: FaultInjector
    health: Health
    streams: list[Stream]

    def replace_watcher(self, stream: Stream, watcher: int) -> None: ...

    def publish_in(self, stream: Stream, lane: int) -> None: ...

    def trace(self, what: str, **details: Any) -> None: ...


class Relapses:
    """Makes watchers fall behind, and replaces their arguments when they have just caught up.

    The new arguments make the stream's owner read the watcher's position while a transaction is about to delete this
    position. The object survives restarts of the simulated process.
    """

    def __init__(self, world: RelapsingWorld) -> None:
        self._random = Random(f"{world.scenario.seed}/who relapses")
        self._world = world
        self._deployed: set[tuple[int, int]] = set()
        """Deployed watchers, with the lanes where they still have a position."""
        self._mended: list[tuple[Stream, int, int]] = []
        """Watchers, with the lanes that they have read to the end."""
        self._is_some_mended = AutoResetEvent()

    def on_read_again(self, stream: Stream, watcher: int, message: Message) -> None:
        """Called when a catch-up has passed a message. After the last message of a lane, a deployment may follow."""
        is_last = message.offset + 1 == len(stream.broker.lanes[message.lane].messages)
        if is_last and not self._world.faults.are_over and self._random.random() < _SHARE:
            self._mended.append((stream, watcher, message.lane))
            self._is_some_mended.set()

    async def on_deleting(self, watcher: int, lane: int) -> None:
        """Called when a transaction deletes a position. Delays the transaction if the watcher was just deployed."""
        if (watcher, lane) in self._deployed and not self._world.faults.are_over:
            self._deployed.discard((watcher, lane))
            await asyncio.sleep(self._random.uniform(0.0, _DELETION_S))

    async def run(self, announce: Callable[[Stream], None]) -> None:
        """Cause relapses until the faults end.

        Args:
            announce: Tells the hosts of the current process about a changed stream.
        """
        self._deployed.clear()
        self._mended.clear()
        self._is_some_mended = AutoResetEvent()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._deploy, announce)
            while not self._world.faults.are_over:
                await asyncio.sleep(self._random.expovariate(1.0 / _EVERY_S))
                stream = self._random.choice(self._world.streams)
                if stream.watchers:
                    watcher = self._random.choice(sorted(stream.watchers))
                    lane = self._random.randrange(self._world.scenario.lanes)
                    await self._relapse(stream, watcher, lane)
            tasks.cancel_scope.cancel()

    async def _deploy(self, announce: Callable[[Stream], None]) -> None:
        while True:
            await self._is_some_mended.wait()
            mended, self._mended = self._mended, []
            for stream, watcher, lane in mended:
                await asyncio.sleep(self._random.uniform(0.0, _SOON_S))
                if watcher not in stream.watchers or self._world.faults.are_over:
                    continue
                self._world.trace("deploy", stream=stream.key, watcher=watcher)
                self._world.replace_watcher(stream, watcher)
                announce(stream)
                self._deployed.add((watcher, lane))
                await asyncio.sleep(self._random.uniform(0.0, _PAUSE_S))
                await self._relapse(stream, watcher, lane)

    async def _relapse(self, stream: Stream, watcher: int, lane: int) -> None:
        """Make a watcher unwell for a moment while messages come."""
        world, random = self._world, self._random
        if world.faults.are_over:
            return
        world.trace("relapse", watcher=watcher, how=world.health.relapse(watcher, random))
        for _ in range(random.randint(1, _MESSAGES)):
            await asyncio.sleep(random.uniform(0.0, _APART_S))
            if not world.faults.are_over:
                world.publish_in(stream, lane)
