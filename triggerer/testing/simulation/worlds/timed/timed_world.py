"""A separate world of one to four schedulers, with DAGs that have timetables.

The world has its own virtual time, and its own random generator.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any, ClassVar, cast

import anyio

from triggerer.domain.schedules import next_info
from triggerer.errors import StoreError
from triggerer.scheduler.loop import Scheduler
from triggerer.store.database.wakeups.signals import Signal
from triggerer.testing.simulation.checks.checker import Checker, Violation
from triggerer.testing.simulation.database.model import EPOCH, Dag, DagState, Store
from triggerer.testing.simulation.database.planning_writes import find_candidates, find_due_times
from triggerer.testing.simulation.database.transactions import Database
from triggerer.testing.simulation.kernel.drawn_faults import FaultInjector
from triggerer.testing.simulation.kernel.host_clock import Host, host_clocks, on_host
from triggerer.testing.simulation.kernel.loop import Deadlock, VirtualLoop
from triggerer.testing.simulation.kernel.scenario import Scenario
from triggerer.testing.simulation.worlds.timed.partition_checker import PartitionChecker
from triggerer.testing.simulation.worlds.timed.partitioned_dags import draw_follower
from triggerer.testing.simulation.worlds.timed.timed_dags import (
    ASSETS,
    OUTLETS,
    draw_change,
    draw_dag,
)
from triggerer.testing.simulation.worlds.unwinding import Crash, Finished, unwind
from triggerer.testing.simulation.worlds.workload import Workload

_FAULTS_S = 3 * 3600.0
_CALM_S = 3600.0
"""The seconds for which the world continues after the first moment at which no run is due."""
_UNTIL_IDLE_S = 12 * 3600.0
_BOUND_S = 240.0
"""The longest time for which a run may be due when no faults occur, in seconds.

A gap, a quiet period or the cap on runs may delay the run.
"""
_SWEEP = timedelta(minutes=30)
_LONGEST_RUN_S = 60.0
_ACTIONS = (
    "emit", "pause", "resume", "change", "parse", "lose", "find", "jump", "set the clock", "set a host's clock", "kill",
)  # fmt: skip
_WEIGHTS = (12, 3, 5, 2, 2, 1, 3, 1, 1, 1, 2)
_HARMLESS = {"emit", "pause", "resume", "parse"}


class TimedWorld:
    """Runs schedulers for hours with faults, then without faults until no run is due, and then for one more hour."""

    name: ClassVar[str] = "timetables"
    """The name of the world. The seed of its random generator contains the name."""
    action_interval_s: ClassVar[float] = 240.0
    """The average time between two actions, in seconds."""
    assets = ASSETS
    """The assets of emitted events."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        first_step: int = 0,
        trace: Callable[[float, int, str], None] | None = None,
    ) -> None:
        seed = scenario.seed
        self.random = Random(f"{self.name} {seed}")
        self.faults = FaultInjector(seed, latency=scenario.latency, slow_rate=scenario.slow_rate)
        self.checker = Checker()
        self.store = Store(scenario, self.faults, self.checker)
        self.store.time = self._time
        self.steps = first_step
        self.loop: VirtualLoop | None = None
        self._trace = trace
        self._now = 0.0
        self._numbers = 0
        self._crash_rate = self.random.choice((0.0, 0.0005, 0.002))
        self._do_clocks_jump = self.random.random() < 0.5
        self._hosts = [Host() for _ in range(self.random.randint(1, 4))]
        self._idle_at: float | None = None
        self._due_since: dict[tuple[str, int], float] = {}
        self._draw_dags()
        self.times = self.store.times = PartitionChecker(self.store)
        if trace is not None:
            self.checker.trace = self.trace

    def _draw_dags(self) -> None:
        assets = dict.fromkeys((*self.assets, *OUTLETS))
        self.store.asset_ids = {asset.name: number for number, asset in enumerate(assets, 1)}
        for dag in self.draw_all_dags():
            self.store.dags[dag.dag_id] = dag
            self.store.queues[dag.dag_id] = {}

    def draw_all_dags(self) -> list[Dag]:
        """Draw the DAGs at the start."""
        rng = self.random
        is_followed = rng.random() < 0.5
        dags = [
            draw_dag(rng, f"timed {number}", is_followed=is_followed)
            for number in range(rng.randint(1, 4))
        ]
        return [*dags, draw_follower(rng, "follower")] if is_followed else dags

    def draw_change(self, dag: Dag) -> Dag:
        """Draw a change of a DAG's file."""
        return draw_change(self.random, dag)

    def draw_events(self) -> list[tuple[int, str | None]]:
        """Draw the events of one call of `Workload.emit`, as pairs of an asset's id and a partition key."""
        assets = [self.store.asset_ids[asset.name] for asset in self.assets]
        return [(self.faults.random.choice(assets), None)]

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def trace(self, what: str, **details: Any) -> None:
        """Add a line to the trace, if there is one."""
        if self._trace is not None:
            text = " ".join(f"{name}={value}" for name, value in details.items())
            self._trace(self._time(), self.steps, f"{what} {text}")

    def _time(self) -> float:
        return self._now if self.loop is None else self.loop.now

    # Processes, one after another

    def run(self) -> None:
        """Run the world to its end.

        Raises:
            Violation: A promise was broken.
        """
        with host_clocks(lambda: EPOCH + timedelta(seconds=self._time())):
            for dag_id, dag in self.store.dags.items():
                self.trace("a DAG", dag=dag)
                self.store.states[dag_id] = DagState(
                    next_run=next_info(dag.on, None, dag.restriction)
                )
            try:
                while self._run_process():
                    pass
            except Violation as violation:
                self.trace(f"VIOLATION {violation}")
                raise

    def _run_process(self) -> bool:
        loop = self.loop = VirtualLoop(self.faults.random, self._now, self._step)
        loop.set_exception_handler(lambda *_: None)
        process = TimedProcess(self)
        asyncio.set_event_loop(loop)
        task = loop.create_task(process.run(self._hosts))
        try:
            loop.run_until_complete(task)
        except Crash:
            self.trace("CRASH")
        except Finished:
            return False
        except Deadlock:
            raise Violation("L1", f"no task can continue: {self.times.find_due()}") from None
        except Violation:
            raise
        except Exception as error:
            raise Violation("S8", f"the process died of {error!r}") from error
        finally:
            self._now = loop.now
            unwind(process.kill, loop, task, self.faults, self.checker)
        for arrive in list(self.store.pending_commits.values()):
            arrive()
        self.store.pending_commits.clear()
        return True

    def _step(self) -> None:
        self.steps += 1
        if self.steps % 1000 == 0:
            gc.collect()
        if self.checker.violation is not None:
            raise self.checker.violation
        if self.faults.are_over:
            if self.steps % 16 == 0:
                self._check_waits()
        elif self._time() > _FAULTS_S:
            self._end_faults()
        elif self.faults.occur(self._crash_rate):
            raise Crash

    def _end_faults(self) -> None:
        self.trace("from here on nothing goes wrong")
        self.faults.are_over = True
        for host in self._hosts:
            host.skew = self.store.skew

    def _check_waits(self) -> None:
        """Check L2: some time after the faults, no run is due. From then on, no run stays due for long."""
        now = self._time()
        with self._hosts[0].as_here():
            due = self.times.find_due()
        # A scheduler notices only at its next sweep that the clock was set. So wait for one sweep after the faults.
        if not due and self._idle_at is None and now > _FAULTS_S + _SWEEP.total_seconds():
            self.trace("nothing is due")
            self._idle_at = now
        if self._idle_at is None:
            if now > _FAULTS_S + _UNTIL_IDLE_S:
                raise Violation("L2", f"{_UNTIL_IDLE_S:.0f} s after the last fault {due}")
            return
        # A new run changes the DAG's keys in `due`, which contain its number of runs. So the waiting time starts again.
        self._due_since = {one: self._due_since.get(one, now) for one in due}
        for one, since in self._due_since.items():
            if now > since + _BOUND_S:
                raise Violation("L2", f"{due[one]}, for more than {_BOUND_S:.0f} s")
        if now > self._idle_at + _CALM_S:
            raise Finished

    # Actions

    def may(self, action: str) -> bool:
        """Return whether this seed allows the action now."""
        if self.faults.are_over:
            return self._idle_at is not None and action in _HARMLESS
        return self._do_clocks_jump or "clock" not in action

    def set_clock(self) -> None:
        """Set the database's clock, by a little or by a lot."""
        reach = self.random.choice((0.5, 120.0, 7200.0))
        by = self.random.uniform(-reach, reach)
        self.times.record_clock(timedelta(seconds=by))
        self.store.skew += timedelta(seconds=by)

    def set_host_clock(self) -> None:
        reach = self.random.choice((0.5, 120.0, 7200.0))
        self.random.choice(self._hosts).skew = timedelta(seconds=self.random.uniform(-reach, reach))


class TimedProcess:
    """The schedulers of a world, from their start until all crash together. Each may also die alone."""

    def __init__(self, world: TimedWorld) -> None:
        self.world = world
        self._database = Database(world.store)
        self._connections: dict[int, Database] = {}
        self._workload = Workload(
            self._database,
            world.store,
            world.next_number,
            longest_run_s=_LONGEST_RUN_S,
            draw_events=world.draw_events,
        )
        self._alone: dict[int, anyio.CancelScope] = {}
        """By number of the host, the cancel scope of its scheduler."""

    def kill(self) -> None:
        """Cut the process off, so that it has no effect on the world from now on."""
        for connection in [self._database, *self._connections.values()]:
            connection.is_alive = False

    async def run(self, hosts: list[Host]) -> None:
        """Run for ever."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._workload.execute)
            for number, host in enumerate(hosts):
                tasks.start_soon(self._keep_scheduler, number, host)
            await self._operate(tasks)

    async def _keep_scheduler(self, number: int, host: Host) -> None:
        on_host.set(host)
        while True:
            connection = self._connections[number] = self._database.connect()
            scheduler = Scheduler(
                cast("Any", connection),
                connection.wakeups,
                sweep_interval=_SWEEP,
                max_dagruns_to_create_per_loop=(32, 1, 3, 7)[number],
                random=self.world.random,
                find_candidates=find_candidates,
                find_due_times=find_due_times,
            )
            with anyio.CancelScope() as scope:
                self._alone[number] = scope
                await scheduler.run()
            connection.is_alive = False
            await asyncio.sleep(self.world.random.uniform(0.0, 300.0))

    async def _operate(self, tasks: anyio.abc.TaskGroup) -> None:
        world, rng = self.world, self.world.random
        while True:
            await asyncio.sleep(rng.expovariate(1 / world.action_interval_s))
            action = rng.choices(_ACTIONS, _WEIGHTS)[0]
            dag = world.store.dags[rng.choice(sorted(world.store.dags))]
            if not world.may(action):
                continue
            world.trace(action, dag=dag.dag_id)
            match action:
                case "emit":
                    tasks.start_soon(self._workload.emit)
                case "pause" | "resume":
                    tasks.start_soon(partial(self._change, is_paused=action == "pause"), dag.dag_id)
                case "lose" | "find":
                    tasks.start_soon(partial(self._change, is_stale=action == "lose"), dag.dag_id)
                case "change":
                    tasks.start_soon(partial(self._change, is_drawn=True), dag.dag_id)
                case "parse":
                    self._database.wakeups.publish(Signal.DAGS_CHANGED, dag.dag_id)
                case "jump":
                    assert world.loop is not None
                    world.loop.now += rng.uniform(0.0, 1800.0)
                case "set the clock":
                    world.set_clock()
                case "set a host's clock":
                    world.set_host_clock()
                case "kill":
                    self._kill_scheduler()

    def _kill_scheduler(self) -> None:
        number = self.world.random.choice(sorted(self._alone))
        # The server notices that the connection is gone, so pending requests are lost.
        self._connections[number].is_alive = False
        self._alone[number].cancel()

    async def _change(
        self,
        dag_id: str,
        *,
        is_paused: bool | None = None,
        is_stale: bool | None = None,
        is_drawn: bool = False,
    ) -> None:
        dag = self.world.store.dags[dag_id]
        if is_drawn:
            dag = self.world.draw_change(dag)
            self.world.trace("changed", dag=dag)
        try:
            await self._database.change_dag(dag, is_paused=is_paused, is_stale=is_stale)
        except StoreError:
            # A user sees the error and does nothing.
            return
