"""The real hosts of streams, and what is noted of whom they host."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from triggerer.abc import BaseEventTrigger
from triggerer.domain.events import Carrier, EventSource, Fence, UnsettledEvent
from triggerer.hosting.host import HostSettings, TriggerHost
from triggerer.runtime import Manager, RuntimeContext, RuntimeSettings, TriggerSpec
from triggerer.runtime.hosted import HostedTrigger
from triggerer.store.queries.hosting import TriggerRow
from triggerer.store.recording.recorder import EventRecorder
from triggerer.testing.simulation.loop import LoopClock
from triggerer.testing.simulation.triggers import FilterTrouble, UnderSimulation, bind

if TYPE_CHECKING:
    from triggerer.runtime.subscriber import DerivedEvent
    from triggerer.testing.simulation.process import Process
    from triggerer.testing.simulation.world import Stream


class Hosting:
    """One stream in one instance, under one lease: who belongs to it there, by what the host tells its manager."""

    def __init__(self, instance: Instance, stream: Stream, fence: Fence) -> None:
        self.instance = instance
        self.stream = stream
        self.fence = fence
        self.plan = instance.process.world.plan
        self.chance = instance.process.world.chance
        self.checker = instance.process.world.checker
        self.hosted: dict[int, HostedTrigger] = {}
        """By watcher."""
        self.is_over = False
        """Whether the instance knows that the lease is over."""

    @property
    def is_alive(self) -> bool:
        return self.instance.process.is_alive

    def cohort(self) -> dict[int, Any]:
        """Who has to answer for what is broadcast now; None for those who are not there."""
        found: dict[int, Any] = {}
        for watcher, hosted in self.hosted.items():
            subscriber = hosted.subscriber
            found[watcher] = (
                subscriber if subscriber is not None and subscriber.is_present else None
            )
        return found


@dataclass(frozen=True, slots=True)
class Making:
    """How a trigger is made, and for whom: what the host's specifications carry here."""

    hosting: Hosting
    row: TriggerRow
    cls: type[BaseEventTrigger]

    @property
    def watcher(self) -> int:
        return self.row.watchers[0].watcher_id

    def __call__(self) -> BaseEventTrigger:
        hosting = self.hosting
        if hosting.chance.strikes(hosting.plan.make_trouble):
            raise FilterTrouble("in the constructor")
        return self.cls(**self.row.kwargs)


def making_of(hosted: HostedTrigger) -> Making:
    """How a trigger that a simulated host runs is made, and for whom."""
    return cast("Making", hosted.spec.make)


class ObservedManager(Manager):
    """Notes who is hosted: no more than its host has room for (S9).

    Nobody is taken out, or hosted anew, about whom nothing changed (L4).
    """

    def __init__(self, context: RuntimeContext, instance: Instance) -> None:
        super().__init__(context)
        self._instance = instance

    def add(self, specs: Iterable[TriggerSpec]) -> list[HostedTrigger]:
        added = super().add(specs)
        for hosted in added:
            making = making_of(hosted)
            if making.watcher in making.hosting.hosted:
                making.hosting.checker.fail("L4", f"{hosted.name} is hosted twice")
            making.hosting.hosted[making.watcher] = hosted
        count, capacity = self._instance.hosted, self._instance.process.world.capacity
        if count > capacity:
            self._instance.process.world.checker.fail(
                "S9", f"{self._instance.name} hosts {count} triggers, its capacity is {capacity}"
            )
        return added

    def remove(self, member: HostedTrigger, *, on_purpose: bool) -> None:
        making = making_of(member)
        store = self._instance.process.world.store
        if store.triggers.get(making.row.trigger_id) is making.row:
            making.hosting.checker.fail(
                "L4", f"{member.name} was stopped, and nothing about it changed"
            )
        making.hosting.hosted.pop(making.watcher, None)
        super().remove(member, on_purpose=on_purpose)


class ObservedHost(TriggerHost):
    """The product's host; noted is which of its leases it knows to be over."""

    def __init__(self, instance: Instance, settings: RuntimeSettings) -> None:
        process = instance.process
        plan = process.world.plan
        super().__init__(
            cast("Any", process.database),
            instance_id=instance.name,
            load_class=_load_nothing,
            sink=instance,
            settings=HostSettings(
                lease=timedelta(seconds=plan.lease),
                heartbeat=timedelta(seconds=plan.lease / 3),
                drain=timedelta(seconds=process.world.chance.random.uniform(0.1, 10.0)),
                capacity=process.world.capacity,
            ),
        )
        self._instance = instance
        self._manager = ObservedManager(
            RuntimeContext(
                instance,
                clock=LoopClock(process.loop),
                now=process.world.store.now,
                settings=settings,
                restart_longest=plan.restart_longest,
                on_state=self._note_state,
            ),
            instance,
        )

    def _spec(self, row: TriggerRow, fence: Fence) -> TriggerSpec:
        hosting = self._instance.hosting(fence)
        world = self._instance.process.world
        cls = bind(world.class_of(row), hosting)
        return replace(super()._spec(row, fence), make=Making(hosting, row, cls))

    async def _give_back(self, digests: list[str]) -> None:
        shown = self._instance.process.world.store.shown[self._instance.name]
        for hosting in self._instance.under_lease():
            key = hosting.stream.key
            is_as_declared = len(hosting.hosted) == shown.loads[key].triggers
            beyond = shown.is_beyond_share(self._instance.name)
            if key in digests and is_as_declared and not beyond:
                hosting.checker.fail("L4", f"{key} did not grow, and gives way to what did")
        await super()._give_back(digests)

    def _forget(self, digest: str) -> None:
        for hosting in self._instance.under_lease():
            if hosting.stream.key == digest:
                self._instance.note_end(hosting.fence)
        super()._forget(digest)

    def _adopt(self, fences: list[Fence]) -> None:
        before = self._instance.under_lease()
        super()._adopt(fences)
        for hosting in before:
            if hosting.fence not in fences:
                self._instance.note_end(hosting.fence)
            elif hosting.is_over:
                hosting.checker.fail("L4", f"{hosting.fence} still holds, and was given up")


def _load_nothing(classpath: str) -> type[BaseEventTrigger]:
    raise NotImplementedError(f"{classpath} is made by the simulation")


class Instance:
    """A triggerer: a recorder and a host of streams."""

    def __init__(self, process: Process, name: str) -> None:
        plan = process.world.plan
        self.name = name
        self.process = process
        self._hostings: dict[Fence, Hosting] = {}
        self._submitting: Fence | None = None
        self.recorder = EventRecorder(
            cast("Any", process.database),
            on_fenced=self._note_fenced,
            max_batch_rows=plan.max_batch_rows,
            clock=self._stamp,
        )
        self.host = ObservedHost(
            self,
            RuntimeSettings(
                ack_timeout=plan.ack_timeout,
                subscriber_queue_size=plan.queue_size,
                overflow_grace=plan.overflow_grace,
                max_outstanding=plan.max_outstanding,
                max_outstanding_per_lane=plan.max_outstanding_per_lane,
                max_unsettled=plan.max_unsettled,
                burst=plan.burst,
            ),
        )

    def hosting(self, fence: Fence) -> Hosting:
        """What belongs to this lease."""
        found = self._hostings.get(fence)
        if found is None:
            stream = self.process.world.stream(fence.stream_digest)
            found = self._hostings[fence] = Hosting(self, stream, fence)
        return found

    @property
    def hosted(self) -> int:
        """How many triggers it hosts, those included that it drains."""
        return sum(len(hosting.hosted) for hosting in self._hostings.values())

    def under_lease(self) -> list[Hosting]:
        """Those whose lease it does not know to be over."""
        return list(self._hostings.values())

    def note_end(self, fence: Fence) -> None:
        """It stops what belongs to this lease; should it fail to give the lease back, it begins anew under it."""
        hosting = self._hostings.pop(fence, None)
        if hosting is not None:
            hosting.is_over = True

    def submit_nowait(
        self,
        event: UnsettledEvent,
        yielded: Carrier,
        source: EventSource,
        key: str | None,
        ordinal: int,
    ) -> None:
        """Hand an event to the recorder; noted is the lease under which its filter was started."""
        derived = cast("DerivedEvent", event)
        self._submitting = cast("UnderSimulation", derived.subscriber.trigger).hosting.fence
        self.recorder.submit_nowait(event, yielded, source, key, ordinal)

    def _stamp(self) -> datetime:
        """The time of the event that is being submitted, which no other event has."""
        store = self.process.world.store
        stamp = store.now()
        while stamp in store.derived_under:
            stamp += timedelta(microseconds=1)
        assert self._submitting is not None
        store.derived_under[stamp] = self._submitting
        return stamp

    def _note_fenced(self, fence: Fence) -> None:
        self.note_end(fence)
        self.host.note_fenced(fence)
