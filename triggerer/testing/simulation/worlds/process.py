"""One process. It runs the product's services on the models, and acts as operators, users and networks."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import anyio

from triggerer.scheduler.loop import Scheduler
from triggerer.store.database.wakeups.signals import Signal
from triggerer.testing.simulation.database.planning_writes import find_candidates, find_due_times
from triggerer.testing.simulation.database.transactions import Database
from triggerer.testing.simulation.worlds.file_reader import FileReader
from triggerer.testing.simulation.worlds.instance import Instance
from triggerer.testing.simulation.worlds.workload import Workload

if TYPE_CHECKING:
    from triggerer.domain.events import Fence
    from triggerer.streams.supervision.stream import SharedStream
    from triggerer.testing.simulation.brokers.stream import Stream
    from triggerer.testing.simulation.kernel.loop import VirtualLoop
    from triggerer.testing.simulation.worlds.leased_stream import LeasedStream
    from triggerer.testing.simulation.worlds.world import World

_NEVER = timedelta(days=365)


_ACTIONS = (
    "publish",
    "emit",
    "restart",
    "parse",
    "expire",
    "regain",
    "rebalance",
    "jump",
    "set the clock",
    "cut off",
    "add",
    "delete",
    "replace",
    "delete all",
)
_CLOCKS = {"jump", "set the clock"}
_WEIGHTS = (14, 3, 1, 2, 2, 1, 2, 1, 1, 1, 3, 2, 2, 1)


class Process:
    """A process from its start to its end or crash. Then everything in its memory is lost."""

    def __init__(self, world: World, loop: VirtualLoop) -> None:
        self.world = world
        self.loop = loop
        self.database = Database(world.store)
        world.checker.catching_up.falls_behind = world.falls_behind
        self._workload = Workload(self.database, world.store, world.next_number)
        # An instance gets a new id at every start.
        self.instances = [
            Instance(world, self.database, loop, f"{name}{world.processes}") for name in "ab"
        ]
        self.schedulers = [
            Scheduler(
                cast("Any", self.database),
                self.database.wakeups,
                sweep_interval=_NEVER,
                random=world.jitter,
                find_candidates=find_candidates,
                find_due_times=find_due_times,
            )
            for _ in range(2)
        ]

    @property
    def is_alive(self) -> bool:
        return self.database.is_alive

    def kill(self) -> None:
        """Cut the process off, so that it has no effect on the world from now on."""
        self.database.is_alive = False

    async def run(self) -> None:
        """Run until the operator restarts it."""
        files = self.world.files
        async with anyio.create_task_group() as tasks:
            if files is not None:
                await tasks.start(FileReader(self.world, files, self.database).run)
            for instance in self.instances:
                tasks.start_soon(instance.recorder.run)
                tasks.start_soon(instance.positions.run)
                tasks.start_soon(instance.parked.run)
            for scheduler in self.schedulers:
                await tasks.start(scheduler.run)
            tasks.start_soon(self._workload.execute)
            if self.world.catching_up_draws.is_on:
                tasks.start_soon(self._sicken)
            if (
                self.world.catching_up_draws.is_on
                and self.world.catching_up_draws.outage_every_s is not None
            ):
                tasks.start_soon(self._suffer_outages)
            if (
                self.world.catching_up_draws.is_on
                and self.world.catching_up_draws.flooded_every_s is not None
            ):
                tasks.start_soon(self.world.operator.flood)
            if self.world.catching_up_draws.sets_aside:
                tasks.start_soon(self.world.operator.tidy, self.database)
            if self.world.catching_up_draws.is_on and self.world.replaying is not None:
                tasks.start_soon(self.world.replaying.run, self.database)
            if self.world.recreations is not None:
                tasks.start_soon(self.world.recreations.run)
            if self.world.deployments is not None:
                tasks.start_soon(self.world.deployments.run, self._announce)
            if self.world.sharing is not None:
                tasks.start_soon(self.world.sharing.run, self._announce)
            if self.world.relapses is not None:
                tasks.start_soon(self.world.relapses.run, self._announce)
            async with anyio.create_task_group() as hosts:
                for instance in self.instances:
                    await hosts.start(instance.host.run)
                await self._operate(tasks)
                hosts.cancel_scope.cancel()
            tasks.cancel_scope.cancel()

    def hosted_under(self, fence: Fence) -> set[int]:
        """Return the watchers that are hosted under a lease."""
        return {
            watcher
            for instance in self.instances
            for leased in instance.leased_streams()
            if leased.fence == fence
            for watcher in leased.members
        }

    def hosting(self, stream: Stream) -> tuple[LeasedStream, SharedStream] | None:
        """Return a stream's lease and shared stream in the instance that hosts it; None if no instance hosts it."""
        held = self.world.store.owners.leases[stream.key]
        for instance in self.instances:
            hosted = instance.host.manager.streams.get(stream.key)
            for leased in instance.leased_streams():
                if hosted is not None and leased.stream is stream and leased.fence[1:] == held:
                    return leased, hosted
        return None

    # Actions

    async def _operate(self, tasks: anyio.abc.TaskGroup) -> None:
        """Perform random actions of operators, users, networks and clocks. Return when the process must restart."""
        world = self.world
        rng = world.faults.random
        while True:
            if world.faults.are_over:
                await anyio.sleep_forever()
            await asyncio.sleep(rng.expovariate(1.0 / world.scenario.action_interval))
            stream = rng.choice(world.streams)
            action = rng.choices(_ACTIONS, _WEIGHTS)[0]
            if world.faults.are_over:
                continue
            if action in _CLOCKS and world.files is not None and world.files.is_busy:
                continue
            world.trace(action, stream=stream.key)
            match action:
                case "publish":
                    world.publish(stream)
                case "emit":
                    tasks.start_soon(self._workload.emit)
                case "restart":
                    return
                case "parse":
                    self._announce(stream)
                case "expire":
                    tasks.start_soon(self._expire, stream)
                case "regain":
                    tasks.start_soon(self._regain, stream)
                case "rebalance":
                    stream.broker.rebalance(rng.randrange(world.scenario.lanes))
                case "jump":
                    self.loop.pass_time(rng.uniform(0.0, 100.0))
                case "set the clock":
                    world.store.mark_shortened(world.store.owners.leases)
                    world.store.skew += timedelta(seconds=rng.uniform(-3600.0, 3600.0))
                case "cut off":
                    tasks.start_soon(self._cut_off, rng.choice(self.instances))
                case _:
                    self._change(action, stream)

    def _change(self, action: str, stream: Stream) -> None:
        """Add, replace or delete watchers of a stream, as a changed DAG file does, and wake the hosts."""
        world, rng = self.world, self.world.faults.random
        if action == "add" and len(stream.watchers) < 5:
            world.new_watcher(stream)
        elif stream.watchers and action == "replace":
            world.replace_watcher(stream, rng.choice(sorted(stream.watchers)))
        elif stream.watchers and action == "delete":
            world.delete_watcher(stream, rng.choice(sorted(stream.watchers)))
        elif action == "delete all":
            # A message arrives just when the last watcher is deleted.
            world.publish(stream)
            for each in sorted(stream.watchers):
                world.delete_watcher(stream, each)
        self._announce(stream)

    async def _sicken(self) -> None:
        """Again and again, make a watcher unwell for a while."""
        health, world = self.world.health, self.world
        while True:
            await asyncio.sleep(health.random.expovariate(1.0 / world.catching_up_draws.interval_s))
            stream = health.random.choice(world.streams)
            if health.are_over:
                await anyio.sleep_forever()
            if stream.watchers:
                watcher = health.random.choice(sorted(stream.watchers))
                world.trace("unwell", watcher=watcher, how=health.sicken(watcher))

    async def _suffer_outages(self) -> None:
        """Again and again, let all filters of a stream fail for a while."""
        world = self.world
        watchers = [stream.watchers for stream in world.streams]
        await world.health.suffer_outages(
            watchers, lambda one: world.trace("outage", watchers=list(one))
        )

    async def _cut_off(self, instance: Instance) -> None:
        """Cut an instance off from the database for a while, but not from its broker.

        The time may be longer than the lease.
        """
        instance.connection.cut_off()
        await asyncio.sleep(self.world.faults.random.uniform(0.0, 3 * self.world.scenario.lease))
        instance.connection.restore()

    def _announce(self, stream: Stream) -> None:
        """Tell the hosts that files were parsed. Perhaps nothing has changed."""
        self.database.wakeups.publish(Signal.STREAMS_CHANGED, stream.key)

    async def _expire(self, stream: Stream) -> None:
        """Let a lease expire, as if its owner had been suspended.

        The first instance that looks for free streams claims the stream.
        """
        await self.database.until_unshared()
        self.world.store.mark_shortened([stream.key])
        self.world.store.owners.expiries[stream.key] = self.world.store.now()
        self._announce(stream)

    async def _regain(self, stream: Stream) -> None:
        """Let a lease expire, and let its owner claim the stream again, in a new epoch."""
        await self.database.until_unshared()
        self.world.store.mark_shortened([stream.key])
        held = self.world.store.owners.leases
        owner, epoch = held[stream.key]
        if self.world.files is not None and epoch == 0:
            return  # the stream has had no owner yet
        held[stream.key] = (owner, epoch + 1)
