"""An instance of the service: the product's own host and recorder. Their actions are recorded for the checkers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

from triggerer.abc import BaseEventTrigger
from triggerer.domain.events import EventSource, Fence, HasPayload, PendingEvent, WatcherRef
from triggerer.domain.watchers.parked import ParkedBounds, StoredMessage
from triggerer.errors import RowRefused
from triggerer.hosting.class_loader import Loaded
from triggerer.hosting.factory import PreparedTrigger, TriggerFactory
from triggerer.hosting.host import HostSettings, TriggerHost
from triggerer.hosting.ownership import HEARTBEAT_INTERVAL, OWN_LEASE_MARGIN, RETRY_INTERVAL
from triggerer.processes.own_lease import OwnLease
from triggerer.store.events.encoding import encode_extra
from triggerer.store.events.recorder import EventRecorder
from triggerer.store.watchers.hosting import TriggerRow
from triggerer.store.watchers.parked_writer import ParkedWriter
from triggerer.store.watchers.position_writer import PositionWriter
from triggerer.streams import Manager, RuntimeContext, RuntimeSettings, TriggerSpec
from triggerer.streams.supervision.member import Member
from triggerer.testing.simulation.database.connection import Connection
from triggerer.testing.simulation.database.host_queries import (
    SimulatedHostingQueries,
    SimulatedLeaseQueries,
    SimulatedMarkQueries,
)
from triggerer.testing.simulation.kernel.delivery import plain_key
from triggerer.testing.simulation.kernel.loop import LoopClock, VirtualLoop
from triggerer.testing.simulation.worlds.leased_stream import LeasedStream
from triggerer.testing.simulation.worlds.triggers import InjectedError, bind, current_leased_stream

if TYPE_CHECKING:
    from triggerer.testing.simulation.database.transactions import Database
    from triggerer.testing.simulation.worlds.world import World


@dataclass(frozen=True, slots=True)
class TriggerMaker:
    """Makes the trigger of a row under a lease. Sometimes the constructor raises."""

    leased: LeasedStream
    prepared: PreparedTrigger
    cls: type[BaseEventTrigger]

    @property
    def row(self) -> TriggerRow:
        return self.prepared.row

    @property
    def watchers(self) -> list[int]:
        return [one.watcher_id for one in self.row.watchers]

    def __call__(self) -> BaseEventTrigger:
        # Call this only for its error, if the class could not be loaded. The result is only a placeholder (`_load`).
        self.prepared.loaded_class()
        leased = self.leased
        if leased.faults.occur(leased.scenario.constructor_fault_rate):
            raise InjectedError("in the constructor")
        for watcher in self.watchers:
            leased.health.check_making(watcher)
        return self.cls(**self.row.kwargs)


def maker_of(member: Member) -> TriggerMaker:
    """Return the maker of a member's trigger."""
    return cast("TriggerMaker", member.spec.make)


def _is_refused(payload: Any) -> bool:
    """Return whether the recorder refuses a payload, so that it does not reach the store."""
    try:
        encode_extra(payload, max_bytes=sys.maxsize)
    except RowRefused:
        return True
    return False


class ObservedManager(Manager):
    """Records under which lease each trigger is hosted, and checks the host's calls.

    A host must not have more triggers than its capacity (S9), and must not stop a trigger without a reason (L4).
    """

    def __init__(
        self,
        instance: Instance,
        context: RuntimeContext,
        on_state: Callable[[Member], None],
    ) -> None:
        super().__init__(context, on_state)
        self._instance = instance
        self._moves: dict[Member, int] = {}
        """By member: the trigger's count in `World.moves` when the member was added."""

    def add(self, specs: Iterable[TriggerSpec]) -> list[Member]:
        world = self._instance.world
        added = super().add(map(self._bind_to_lease, specs))
        for member in added:
            leased = maker_of(member).leased
            for one in member.source.watchers:
                if one.watcher_id in leased.members:
                    leased.checker.fail("L4", f"watcher {one.watcher_id} is hosted twice")
            self._record_source(member, member.source.watchers)
            row = maker_of(member).row
            declared = world.store.triggers.get(row.trigger_id)
            if declared is not None and declared.watchers == row.watchers:
                self._moves[member] = world.moves[row.trigger_id]
        count, capacity = self._instance.hosted_triggers, world.capacity
        if count > capacity:
            world.checker.fail(
                "S9", f"{self._instance.name} hosts {count} triggers, its capacity is {capacity}"
            )
        return added

    def _bind_to_lease(self, spec: TriggerSpec) -> TriggerSpec:
        assert spec.source.fence is not None
        leased = self._instance.leased_stream(spec.source.fence)
        prepared = cast("PreparedTrigger", spec.make)
        world, watcher = self._instance.world, prepared.row.watchers[0].watcher_id
        cls = bind(world.class_of(prepared.row), leased, world.kind_of(watcher))
        return replace(spec, make=TriggerMaker(leased, prepared, cls))

    def remove(self, member: Member, *, on_purpose: bool) -> None:
        maker = maker_of(member)
        world, trigger_id = self._instance.world, maker.row.trigger_id
        has_moved = self._moves.pop(member, None) != world.moves[trigger_id]
        if trigger_id in world.store.triggers and not has_moved:
            maker.leased.checker.fail(
                "L4", f"{member.name} was stopped, although nothing about it changed"
            )
        self._record_source(member, ())
        super().remove(member, on_purpose=on_purpose)

    def replace_source(self, member: Member, source: EventSource, *, name: str) -> None:
        self._record_source(member, source.watchers)
        maker_of(member).leased.checker.record_source(member.subscriber, source.watchers)
        super().replace_source(member, source, name=name)

    def _record_source(self, member: Member, watchers: Iterable[WatcherRef]) -> None:
        """Record the watchers that a member serves from now on."""
        leased = maker_of(member).leased
        for watcher in [one for one, other in leased.members.items() if other is member]:
            del leased.members[watcher]
        leased.members.update((one.watcher_id, member) for one in watchers)

    async def drain(self, timeout: float, members: Iterable[Member] | None = None) -> None:
        """Record which leases the host is about to release."""
        if members is None:
            self._instance.mark_releasing(self._instance.leased_streams())
        else:
            members = list(members)
            giving_way = list({maker_of(member).leased: None for member in members})
            self._instance.check_giving_way(giving_way)
            self._instance.mark_releasing(giving_way)
        await super().drain(timeout, members)

    def abandon(self, member: Member) -> None:
        self._instance.mark_stopped(maker_of(member).leased)
        super().abandon(member)

    def close_stream_known_as(self, stream_id: str) -> None:
        for leased in self._instance.leased_streams():
            if leased.stream.key == stream_id:
                self._instance.record_end(leased.fence)
        super().close_stream_known_as(stream_id)


def _load(_: str) -> type[BaseEventTrigger]:
    """Return a placeholder, because `ObservedManager` makes a class for each row and its lease."""
    return BaseEventTrigger


class SimulatedParkedWriter(ParkedWriter):
    """The product's own writer, except that it reads the rows of the model."""

    async def read_stored(
        self, fence: Fence, watcher_id: int, after: int, limit: int, lane: str | None = None
    ) -> list[StoredMessage]:
        async with self._database.reading() as session:
            store = cast("Any", session).store
            served = store.triggers.values()
            is_there = any(
                row.stream_digest == fence.stream_digest
                and any(one.watcher_id == watcher_id for one in row.watchers)
                for row in served
            )
            rows = store.parked.values() if is_there else ()
            found = [
                StoredMessage(row.id, row.lane, row.key, row.message.encode(), row.failures)
                for row in sorted(rows, key=attrgetter("id"))
                if row.watcher == watcher_id
                and row.id > after
                and row.is_stored
                and lane in {None, row.lane}
            ]
            return found[:limit]


class Instance:
    """One `triggerer` service, with a recorder and a host."""

    def __init__(self, world: World, database: Database, loop: VirtualLoop, name: str) -> None:
        scenario = world.scenario
        self.name = name
        self.world = world
        self._database = database
        self.connection = Connection(database)
        lease = timedelta(seconds=scenario.lease)
        self.own_lease = OwnLease(lease, margin=OWN_LEASE_MARGIN, clock=loop.time)
        self._leased_streams: dict[Fence, LeasedStream] = {}
        self._held: set[Fence] = set()
        """The leases that the last heartbeat reported, except leases that were lost since then or will be released."""
        self._releasing: set[Fence] = set()
        """The leases that the instance has decided to release. It may still extend such a lease before the release."""
        self._submitting: Fence | None = None
        self.recorder = EventRecorder(
            cast("Any", self.connection),
            on_fenced=self._mark_fenced,
            max_batch_rows=scenario.max_batch_rows,
            max_pending_bytes=scenario.max_pending_bytes,
            now=self._stamp,
            random=world.jitter,
        )
        self.positions = PositionWriter(
            cast("Any", self.connection), on_fenced=self._mark_fenced, random=world.jitter
        )
        catching_up_draws = world.catching_up_draws
        self.parked = SimulatedParkedWriter(
            cast("Any", self.connection),
            on_fenced=self._mark_fenced,
            bounds=ParkedBounds(
                catching_up_draws.max_messages,
                catching_up_draws.max_bytes,
                catching_up_draws.total_bytes,
            ),
            random=world.jitter,
            clock=loop.time,
        )
        self.host = TriggerHost(
            cast("Any", self.connection),
            instance_id=name,
            factory=TriggerFactory(_load, start_load=partial(self._start_load, loop)),
            runtime=RuntimeContext(
                self,
                positions=self.positions if world.catching_up_draws.is_on else None,
                parked=self.parked if catching_up_draws.sets_aside else None,
                parked_at_bound="dead_letter"
                if catching_up_draws.dead_letters_at_bound
                else "hold",
                falls_behind=world.falls_behind,
                clock=LoopClock(loop),
                now=world.store.now,
                settings=RuntimeSettings(
                    ack_timeout=scenario.ack_timeout,
                    subscriber_queue_size=scenario.queue_size,
                    overflow_grace=scenario.overflow_grace,
                    max_outstanding=scenario.max_outstanding,
                    max_outstanding_per_lane=scenario.max_outstanding_per_lane,
                    max_outstanding_bytes=scenario.max_outstanding_bytes,
                    max_outstanding_bytes_per_lane=scenario.max_outstanding_bytes_per_lane,
                    max_pending=scenario.max_pending,
                    burst=scenario.burst,
                    max_deliveries=catching_up_draws.max_deliveries,
                    most_recent=catching_up_draws.most_recent,
                ),
                restart_longest=scenario.restart_longest,
                random=world.jitter,
                lease=self.own_lease,
            ),
            settings=HostSettings(
                lease=lease,
                heartbeat=lease * HEARTBEAT_INTERVAL,
                retry=lease * RETRY_INTERVAL,
                drain=timedelta(seconds=world.faults.random.uniform(0.1, 10.0)),
                capacity=world.capacity,
                # A watcher is shown as running at once, so that `RestChecker` can judge its state.
                healthy_after=timedelta(),
            ),
            writers=(self.positions, self.parked),
            leases=SimulatedLeaseQueries(self._record_leases),
            queries=SimulatedHostingQueries(name),
            marks=SimulatedMarkQueries(),
            make_manager=partial(ObservedManager, self),
        )

    def _start_load(
        self, loop: VirtualLoop, perform: Callable[[], Loaded], end: Callable[[Loaded], None]
    ) -> None:
        """Load a class: at once, or perhaps after a while in a world with slow modules."""
        seconds = self.world.draw_loading_time()
        if seconds is None:
            end(perform())
        else:
            loop.call_later(seconds, lambda: end(perform()))

    def leased_stream(self, fence: Fence) -> LeasedStream:
        """Return the stream that this instance hosts under this lease."""
        found = self._leased_streams.get(fence)
        if found is None:
            stream = self.world.stream(fence.stream_digest)
            found = self._leased_streams[fence] = LeasedStream(
                self.world, self._database, stream, fence
            )
        return found

    @property
    def hosted_triggers(self) -> int:
        """The number of hosted triggers, including triggers that are being drained."""
        return sum(leased.triggers for leased in self._leased_streams.values())

    def leased_streams(self) -> list[LeasedStream]:
        """Return the streams of all leases that are not over, as far as the instance knows."""
        return list(self._leased_streams.values())

    def record_end(self, fence: Fence) -> None:
        """Record that the instance stops a stream.

        If the release of the lease fails, the instance may start the stream again under the same lease.
        """
        self._held.discard(fence)
        leased = self._leased_streams.pop(fence, None)
        if leased is not None:
            leased.is_over = True

    def mark_stopped(self, leased: LeasedStream) -> None:
        """Check that the instance may stop this stream without a drain (L4).

        The instance may stop the stream if the stream's lease is lost, if the instance has decided
        to release this lease, or if the lease is over by the instance's own clock.
        """
        if leased.fence in self._held and not self.own_lease.is_over:
            leased.checker.fail("L4", f"{leased.fence} was given up, although the lease holds")
        self.record_end(leased.fence)

    def mark_releasing(self, leased_streams: Iterable[LeasedStream]) -> None:
        """Record that the instance has decided to release these leases."""
        self._releasing.update(leased.fence for leased in leased_streams)
        self._held -= self._releasing

    def check_giving_way(self, leased_streams: Iterable[LeasedStream]) -> None:
        """Check that an instance has a reason to release these streams (L4).

        Reasons: the instance owns more than its share of the streams, or a stream's number of triggers has changed.
        """
        shown = self.world.store.shown[self.name]
        for leased in leased_streams:
            key = leased.stream.key
            is_as_declared = leased.triggers == shown.loads[key].triggers
            if is_as_declared and not shown.is_beyond_share(self.name):
                leased.checker.fail("L4", f"{key} was released for lack of room, but did not grow")

    def _record_leases(self, fences: list[Fence]) -> None:
        """Record the leases of a heartbeat. The instance has lost all other leases that it had."""
        held = set(fences)
        self._held = held - self._releasing
        for leased in self.leased_streams():
            if leased.fence not in held:
                self.record_end(leased.fence)

    @property
    def is_full(self) -> bool:
        return self.recorder.is_full

    async def wait_for_room(self) -> None:
        await self.recorder.wait_for_room()

    def submit_nowait(
        self,
        event: PendingEvent,
        yielded: HasPayload,
        source: EventSource,
        key: str | None,
        ordinal: int,
    ) -> None:
        """Submit an event to the recorder, and remember the lease under which its filter was started."""
        # The filter's own task calls this method, so the task's context has the lease.
        self._submitting = current_leased_stream.get().fence
        if key is not None and _is_refused(yielded.payload):
            self.world.checker.refused.update(
                (watcher.watcher_id, one, ordinal)
                for watcher in source.watchers
                for one in (key, plain_key(key))
            )
        self.recorder.submit_nowait(event, yielded, source, key, ordinal)

    def _stamp(self) -> datetime:
        """Return a unique timestamp for the event that is being submitted, and record its lease."""
        store = self.world.store
        stamp = store.now()
        while stamp in store.derived_under:
            stamp += timedelta(microseconds=1)
        assert self._submitting is not None
        store.derived_under[stamp] = self._submitting
        return stamp

    def _mark_fenced(self, fence: Fence) -> None:
        self.record_end(fence)
        self.host.mark_fenced(fence)
