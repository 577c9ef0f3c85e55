"""The world of a seed: what outlives a process, the processes that live in it, and what befalls them."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import anyio

from triggerer.abc import BaseEventTrigger
from triggerer.domain.assets import Asset
from triggerer.domain.events import WatcherRef
from triggerer.scheduler.loop import Scheduler
from triggerer.store.bulk import EventRow, insert_events
from triggerer.store.queries.hosting import TriggerRow
from triggerer.store.wakeups import Signal, announce
from triggerer.testing.simulation import sandbox
from triggerer.testing.simulation.broker import Broker
from triggerer.testing.simulation.chance import Chance
from triggerer.testing.simulation.checker import Checker, Violation
from triggerer.testing.simulation.hosting import Hosting, Instance
from triggerer.testing.simulation.loop import Deadlock, VirtualLoop
from triggerer.testing.simulation.plan import Plan, draw_plan
from triggerer.testing.simulation.store import Dag, Database, Store
from triggerer.testing.simulation.triggers import Choosing

_CALM_STEPS = 400_000
_TO_DIE = 600.0
"""Seconds for everything that a process shields from its cancellation; each has a deadline of its own."""
_COLLECT_EVERY = 1000
"""Steps."""
_NEVER = timedelta(days=365)


class _Crash(BaseException):
    """The process is gone between two steps."""


class _Finished(BaseException):
    """Everything has reached its end."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a seed; `violation` is None where every promise was kept."""

    plan: Plan
    violation: Violation | None
    steps: int
    virtual_seconds: float
    processes: int
    messages: int
    events: int
    runs: int


@dataclass(frozen=True, slots=True)
class Template:
    """What watchers of a stream are made after; None: any asset."""

    cls: type[BaseEventTrigger]
    kwargs: dict[str, Any]
    asset_id: int | None = None


@dataclass(slots=True)
class Stream:
    """A stream key: its broker, and the watchers that belong to it."""

    key: str
    broker: Broker
    templates: tuple[Template, ...]
    next_event: Callable[[int, int, int], Any]
    """Makes the raw event of a message: its number, its lane, and its offset there."""
    watchers: dict[int, TriggerRow] = field(default_factory=dict)
    """The row of each, by watcher."""


class Process:
    """One life: everything in it is lost when it crashes."""

    def __init__(self, world: World, loop: VirtualLoop) -> None:
        self.world = world
        self.loop = loop
        self.is_alive = True
        self.database = Database(world.store, self)
        # An instance's id is new at every start.
        self.instances = [Instance(self, f"{name}{world.processes}") for name in "ab"]
        self.schedulers = [
            Scheduler(cast("Any", self.database), self.database.wakeups, sweep_interval=_NEVER)
            for _ in range(2)
        ]

    async def live(self) -> None:
        """Until the operator restarts it."""
        async with anyio.create_task_group() as tasks:
            for instance in self.instances:
                tasks.start_soon(instance.recorder.run)
            for scheduler in self.schedulers:
                await tasks.start(scheduler.run)
            tasks.start_soon(self._execute)
            async with anyio.create_task_group() as hosts:
                for instance in self.instances:
                    await hosts.start(instance.host.run)
                await self._operate(tasks)
                hosts.cancel_scope.cancel()
            tasks.cancel_scope.cancel()

    # What is around the product

    async def _execute(self) -> None:
        """End each run some time after it was queued."""
        following: set[int] = set()
        async with anyio.create_task_group() as tasks:
            with self.database.wakeups.subscribe(Signal.RUNS_QUEUED) as subscription:
                while True:
                    for pk, run in self.world.store.runs.items():
                        if not run.is_ended and pk not in following:
                            following.add(pk)
                            tasks.start_soon(self._end_run, pk, run.dag_id)
                    await subscription.wait()

    async def _end_run(self, pk: int, dag_id: str) -> None:
        chance = self.world.chance
        await asyncio.sleep(chance.random.uniform(0.0, 5.0))
        await self._insist(lambda session: session.end_run(pk), Signal.RUNS_ENDED, dag_id)

    async def _emit(self) -> None:
        """Another writer, whose rows get their ids long before they are committed."""
        world = self.world
        asset = world.chance.random.choice(sorted(world.store.asset_ids.values()))
        row = EventRow(asset, "{}", world.store.now(), 0, f"emitted {world.next_number()}", 0)
        try:
            async with self.database.transaction() as session:
                inserted = await session.perform(insert_events([row]))
                announce(cast("Any", session), Signal.EVENTS_QUEUED, *inserted.dag_ids)
                await asyncio.sleep(world.chance.random.uniform(0.0, 3.0))
        except world.store_errors:
            # The emitter is told, and gives up; a commit of unknown outcome may have been one.
            return

    async def _insist(self, act: Callable[[Any], None], signal: Signal, subject: str) -> None:
        while True:
            try:
                async with self.database.transaction() as session:
                    act(session)
                    announce(cast("Any", session), signal, subject)
            except self.world.store_errors:
                await asyncio.sleep(0.1)
            else:
                return

    # What befalls it

    async def _operate(self, tasks: anyio.abc.TaskGroup) -> None:
        """Do things that operators, users and networks do; return for an orderly restart."""
        world = self.world
        draw = world.chance.random
        while True:
            if world.chance.is_calm:
                await anyio.sleep_forever()
            await asyncio.sleep(draw.expovariate(1.0 / world.plan.operate))
            stream = draw.choice(world.streams)
            action = draw.choices(_ACTIONS, _WEIGHTS)[0]
            if world.chance.is_calm:
                continue
            world.note(action, stream=stream.key)
            match action:
                case "publish":
                    world.publish(stream)
                case "emit":
                    tasks.start_soon(self._emit)
                case "restart":
                    return
                case "parse":
                    self._announce(stream)
                case "expire":
                    tasks.start_soon(self._expire, stream)
                case "regain":
                    tasks.start_soon(self._regain, stream)
                case "rebalance":
                    stream.broker.rebalance(draw.randrange(world.plan.lanes))
                case "jump":
                    self.loop.now += draw.uniform(0.0, 100.0)
                case "set the clock":
                    world.store.skew += timedelta(seconds=draw.uniform(-3600.0, 3600.0))
                case _:
                    self._change(action, stream)

    def _change(self, action: str, stream: Stream) -> None:
        """A DAG file was changed: other rows, of which the hosts are told."""
        world, draw = self.world, self.world.chance.random
        if action == "add" and len(stream.watchers) < 5:
            world.new_watcher(stream)
        elif stream.watchers and action == "replace":
            world.replace_watcher(stream, draw.choice(sorted(stream.watchers)))
        elif stream.watchers and action == "delete":
            world.delete_watcher(stream, draw.choice(sorted(stream.watchers)))
        elif action == "delete all":
            # A message comes in at the very moment in which the last watcher goes.
            world.publish(stream)
            for each in sorted(stream.watchers):
                world.delete_watcher(stream, each)
        self._announce(stream)

    def _announce(self, stream: Stream) -> None:
        """Files were parsed, whether or not anything came of it."""
        self.database.wakeups.publish(Signal.STREAMS_CHANGED, stream.key)

    async def _expire(self, stream: Stream) -> None:
        """The stream's lease runs out, as if its owner had stood still; whoever looks first has it."""
        await self.database.until_unshared()
        self.world.store.owners.expiries[stream.key] = self.world.store.now()
        self._announce(stream)

    async def _regain(self, stream: Stream) -> None:
        """The lease was lost and claimed again by the instance that had it: the same owner in a later epoch."""
        await self.database.until_unshared()
        held = self.world.store.owners.leases
        owner, epoch = held[stream.key]
        held[stream.key] = (owner, epoch + 1)


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
    "add",
    "delete",
    "replace",
    "delete all",
)
_WEIGHTS = (14, 3, 1, 2, 2, 1, 2, 1, 1, 3, 2, 2, 1)


class World:
    """Everything that a seed decides. `run` goes through process lives until all is at its end."""

    def __init__(
        self, plan: Plan, *, steps: int, note: Callable[[float, int, str], None] | None = None
    ) -> None:
        from triggerer.errors import StoreError

        self.store_errors = StoreError
        self.plan = plan
        self.chance = Chance(plan.seed, latency=plan.latency, slow=plan.slow)
        self.checker = Checker()
        self.checker.is_owner = self._is_owner
        if note is not None:
            self.checker.note = self.note
        self.store = Store(plan, self.chance, self.checker)
        self.streams: list[Stream] = []
        self._classes: dict[int, type[BaseEventTrigger]] = {}
        self.steps = 0
        self.processes = 0
        self._note = note
        self._limit = steps
        self._numbers = 0
        self._process: Process | None = None
        self._calm_since = 0.0
        self._longest_lease = 0.0
        self._sessions_when_calm = 0
        self.now = 0.0
        self._draw_dags()
        self._draw_streams()

    # Before it starts

    def _draw_dags(self) -> None:
        draw = self.chance.random
        assets = [Asset(name=name) for name in "xyz"]
        self.store.asset_ids = {asset.name: number for number, asset in enumerate(assets, 1)}
        x, y, z = assets
        conditions = (x, y, x & y, x | y, x & (y | z))
        for number in range(draw.randint(1, 3)):
            self.add_dag(
                Dag(
                    f"dag {number}",
                    draw.choice(conditions),
                    max_active_runs=draw.choice((1, 1, 2, 16)),
                    events_per_run=draw.choice((None, 1, 2)),
                )
            )

    def add_dag(self, dag: Dag) -> None:
        self.store.dags[dag.dag_id] = dag
        self.store.queues[dag.dag_id] = {}

    def replace_dags(self, dags: Iterable[Dag], asset_ids: dict[str, int]) -> None:
        """Have these DAGs instead of those that the seed drew."""
        self.store.dags.clear()
        self.store.queues.clear()
        self.store.asset_ids = asset_ids
        for dag in dags:
            self.add_dag(dag)

    def _draw_streams(self) -> None:
        for number in range(self.plan.streams):
            key = f"stream {number}"
            broker = Broker(key, self.plan, self.chance, self.checker)
            template = Template(Choosing, {})
            stream = Stream(key, broker, (template,), lambda number, *_: f"message {number}")
            self.add_stream(stream)
            for _ in range(self.plan.watchers):
                self.new_watcher(stream)

    def stream(self, key: str) -> Stream:
        """The stream of this key."""
        return next(stream for stream in self.streams if stream.key == key)

    def add_stream(self, stream: Stream) -> None:
        self.streams.append(stream)
        self.store.owners.leases[stream.key] = (None, 0)

    def forget_streams(self) -> None:
        """Have none of those that the seed drew."""
        self.streams.clear()
        self.store.owners.leases.clear()
        self.store.triggers.clear()

    def new_watcher(self, stream: Stream, template: Template | None = None) -> None:
        """Add a watcher after `template`, or after any of the stream's."""
        template = template or self.chance.random.choice(stream.templates)
        asset = template.asset_id
        if asset is None:
            asset = self.chance.random.choice(sorted(self.store.asset_ids.values()))
        number = self.next_number()
        self._declare(stream, WatcherRef(number, asset), template.cls, template.kwargs)

    def replace_watcher(self, stream: Stream, watcher: int) -> None:
        """Give it other arguments: the same watcher, with another trigger."""
        row = stream.watchers[watcher]
        del self.store.triggers[row.trigger_id]
        self._declare(stream, row.watchers[0], self.class_of(row), row.kwargs)

    def delete_watcher(self, stream: Stream, watcher: int) -> None:
        """Delete it on purpose."""
        del self.store.triggers[stream.watchers.pop(watcher).trigger_id]
        self.checker.deleted.add(watcher)

    def _declare(
        self,
        stream: Stream,
        watcher: WatcherRef,
        cls: type[BaseEventTrigger],
        kwargs: dict[str, Any],
    ) -> None:
        number = self.next_number()
        name = f"watcher {watcher.watcher_id}"
        row = TriggerRow(number, cls.__qualname__, kwargs, stream.key, (watcher,), (name,))
        self._classes[number] = cls
        self.store.triggers[number] = stream.watchers[watcher.watcher_id] = row

    def class_of(self, row: TriggerRow) -> type[BaseEventTrigger]:
        """What the row's class path stands for."""
        return self._classes[row.trigger_id]

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def publish(self, stream: Stream) -> None:
        for _ in range(self.chance.random.choice((1, 1, 1, 2, 5))):
            lane = self.chance.random.randrange(self.plan.lanes)
            offset = len(stream.broker.lanes[lane].messages)
            event = stream.next_event(self.next_number(), lane, offset)
            stream.broker.publish(lane, event)

    def note(self, what: str, **details: Any) -> None:
        """A line of the trace, where somebody reads it."""
        if self._note is not None:
            told = " ".join(f"{name}={value}" for name, value in details.items())
            now = self._process.loop.now if self._process is not None else self.now
            self._note(now, self.steps, f"{what} {told}")

    def _is_owner(self, owner: object) -> bool:
        assert isinstance(owner, Hosting)
        held = self.store.owners.leases[owner.stream.key]
        return held == (owner.fence.owner, owner.fence.epoch)

    # Running

    def run(self) -> Outcome:
        gc.collect()
        sandbox.jitter.seed(self.plan.seed)
        random.seed(self.plan.seed)
        try:
            while self._live_once():
                pass
        except Violation as violation:
            self.note(f"VIOLATION {violation}")
            return self._outcome(violation)
        return self._outcome(None)

    def _outcome(self, violation: Violation | None) -> Outcome:
        return Outcome(
            self.plan,
            violation,
            self.steps,
            self.now,
            self.processes,
            sum(len(lane.messages) for stream in self.streams for lane in stream.broker.lanes),
            len(self.store.events),
            len(self.store.runs),
        )

    def _live_once(self) -> bool:
        """One life of the process; False once everything has reached its end."""
        self.processes += 1
        loop = VirtualLoop(self.chance.random, self.now, self._step)
        loop.set_exception_handler(self._on_loop_error)
        process = self._process = Process(self, loop)
        asyncio.set_event_loop(loop)
        life = loop.create_task(process.live())
        try:
            loop.run_until_complete(life)
        except _Crash:
            self.note("CRASH")
        except _Finished:
            return False
        except Deadlock:
            raise Violation("L1", f"nothing moves any more: {self._unfinished()}") from None
        except Violation:
            raise
        except Exception as error:
            raise Violation("S8", f"the process died of {error!r}") from error
        else:
            self.note("stopped in order, starts again")
        finally:
            self.now = loop.now
            self._bury(process, loop, life)
        for land in list(self.store.landing.values()):
            land()
        self.store.landing.clear()
        return True

    def _bury(self, process: Process, loop: VirtualLoop, life: asyncio.Task[None]) -> None:
        """Let what is left of a process unwind, where nothing that it does reaches the world any more."""
        process.is_alive = False
        loop.on_step = None
        was_calm, self.chance.is_calm = self.chance.is_calm, True
        life.cancel()
        try:
            if life.done():
                # It ended in the very turn in which it crashed: take note of that.
                loop.call_soon(loop.stop)
                loop.run_forever()
            else:
                loop.run_until_complete(asyncio.wait([life], timeout=_TO_DIE))
        except Deadlock:
            pass
        if life.done():
            loop.run_until_complete(loop.shutdown_asyncgens())
        else:
            self.checker.fail("L1", "the process does not stop when it is cancelled")
        if life.done() and not life.cancelled():
            life.exception()
        loop.close()
        asyncio.set_event_loop(None)
        self.chance.is_calm = was_calm

    def _on_loop_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        process = self._process
        if process is not None and process.is_alive:
            self.checker.fail("S8", f"nobody handled {context.get('exception') or context}")

    def _step(self) -> None:
        process = self._process
        assert process is not None
        self.steps += 1
        if self.steps % _COLLECT_EVERY == 0:
            gc.collect()
        for instance in process.instances:
            for stream in instance.host.manager.streams.values():
                if stream.group is not None:
                    self.checker.check_group(stream.group)
        if self.checker.violation is not None:
            raise self.checker.violation
        if self.chance.is_calm:
            if self.steps % 16 == 0:
                self._look_for_the_end(process)
        elif self.steps >= self._limit:
            self._calm_down(process)
        elif self.chance.strikes(self.plan.crash):
            raise _Crash

    def _calm_down(self, process: Process) -> None:
        self.note("from here on nothing goes wrong")
        self.chance.is_calm = True
        self._calm_since = process.loop.now
        self._sessions_when_calm = self._sessions()
        # An instance that died leaves its leases behind, the longer if somebody set the database's clock back.
        expiries = self.store.owners.expiries.values()
        now = self.store.now()
        left = max((expiry - now for expiry in expiries), default=timedelta())
        self._longest_lease = max(left.total_seconds(), 0.0)

    def _sessions(self) -> int:
        return sum(stream.broker.sessions for stream in self.streams)

    def _look_for_the_end(self, process: Process) -> None:
        reason = self._unfinished()
        if reason is None:
            self._check_stored(process)
            raise _Finished
        plan = self.plan
        bound = 1200.0 + 6 * plan.ack_timeout + 10 * plan.restart_longest + self._longest_lease
        if process.loop.now > self._calm_since + bound:
            raise Violation("L1", f"{bound:.0f} s after the last fault: {reason}")
        if self._sessions() > self._sessions_when_calm + 20 * plan.streams:
            raise Violation("L3", f"streams are opened again and again: {reason}")
        if self.steps > self._limit + _CALM_STEPS:
            raise Violation("L3", f"{_CALM_STEPS} steps after the last fault: {reason}")

    def _check_stored(self, process: Process) -> None:
        """Whatever a filter yielded under a lease that holds is there, or was refused."""
        held = {one.fence for instance in process.instances for one in instance.under_lease()}
        for timestamp, fence in self.store.derived_under.items():
            if fence in held and timestamp not in self.store.answered:
                raise Violation(
                    "L1", f"what was yielded under {fence} at {timestamp} is not stored"
                )

    def _unfinished(self) -> str | None:
        """What has not reached its end; None where everything has."""
        process = self._process
        assert process is not None
        for stream in self.streams:
            # Without a watcher nobody reads it, and nothing is owed.
            if stream.watchers and not stream.broker.is_finished:
                return f"{stream.key} is not read to its end"
        for instance in process.instances:
            if instance.recorder.unsettled:
                return f"{instance.recorder.unsettled} events are not settled"
        if self.store.landing:
            return "a commit has not landed"
        return self.store.idle_reason()


def simulate(
    seed: int,
    *,
    steps: int = 1000,
    note: Callable[[float, int, str], None] | None = None,
    prepare: Callable[[World], None] | None = None,
) -> Outcome:
    """Run one seed inside a `sandbox`: `steps` steps with faults, then as many as it takes to come to rest.

    Args:
        note: Is told (virtual seconds, step, line) of what befalls the process.
        prepare: May replace the world's DAGs, streams and watchers before anything runs.
    """
    world = World(draw_plan(seed), steps=steps, note=note)
    if prepare is not None:
        prepare(world)
    return world.run()
