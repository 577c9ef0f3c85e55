"""A stream in one instance, under one lease."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from triggerer.testing.simulation.kernel.delivery import Cohort

if TYPE_CHECKING:
    from triggerer.domain.events import Fence
    from triggerer.streams.supervision.member import Member
    from triggerer.testing.simulation.brokers.stream import Stream
    from triggerer.testing.simulation.database.transactions import Database
    from triggerer.testing.simulation.worlds.world import World


class LeasedStream:
    """A stream that one instance hosts under one lease, with its hosted triggers."""

    def __init__(self, world: World, database: Database, stream: Stream, fence: Fence) -> None:
        self.stream = stream
        self.fence = fence
        self.scenario = world.scenario
        self.faults = world.faults
        self.checker = world.checker
        self.health = world.health
        self.stand_still = world.stand_still
        self.relapses = world.relapses
        self._database = database
        self.members: dict[int, Member] = {}
        """The members by watcher. A member can serve several watchers."""
        self.parked_before = max((row.id for row in world.store.parked.values()), default=0)
        """The highest id of a parked row when the lease began."""
        self.is_over = False
        """Whether the instance knows that the lease is over."""

    @property
    def is_alive(self) -> bool:
        return self._database.is_alive

    @property
    def triggers(self) -> int:
        """The number of hosted triggers."""
        return len(set(self.members.values()))

    def cohort(self) -> Cohort:
        """The watchers that must resolve a message that is broadcast now."""
        found: dict[int, Any] = {}
        sharing: dict[Member, set[int]] = {}
        for watcher, member in self.members.items():
            sharing.setdefault(member, set()).add(watcher)
            subscriber = member.subscriber
            found[watcher] = (
                subscriber if subscriber is not None and subscriber.is_present else None
            )
        return Cohort(found, tuple(map(frozenset, sharing.values())))
