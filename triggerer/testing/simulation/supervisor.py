"""Runs the processes of a seed one after another, and reports the first broken promise."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from triggerer.domain.events import Fence
from triggerer.testing.simulation.brokers.producer import SimulatedProducer
from triggerer.testing.simulation.brokers.stream import Stream
from triggerer.testing.simulation.checks.checker import Violation
from triggerer.testing.simulation.failing_filters import FailingFilter, may_explain
from triggerer.testing.simulation.kernel.drawing import draw_scenario
from triggerer.testing.simulation.kernel.loop import Deadlock, VirtualLoop
from triggerer.testing.simulation.kernel.scenario import (
    Scenario,
    has_executors,
    has_partitions,
    has_timetables,
)
from triggerer.testing.simulation.worlds.executors.execution import Trace
from triggerer.testing.simulation.worlds.executors.executor_world import ExecutorWorld
from triggerer.testing.simulation.worlds.instance import Instance
from triggerer.testing.simulation.worlds.process import Process
from triggerer.testing.simulation.worlds.timed.partitioned_world import PartitionedWorld
from triggerer.testing.simulation.worlds.timed.timed_world import TimedWorld
from triggerer.testing.simulation.worlds.unwinding import Crash, Finished, unwind
from triggerer.testing.simulation.worlds.world import World

if TYPE_CHECKING:
    from triggerer.streams.delivery.group import Group

_STEPS_AFTER_FAULTS = 400_000
"""The most steps that a seed may take after its last fault, for each 1,200 s of its time limit.

The limit is in virtual time (rule L1).
"""
_COLLECT_EVERY = 1000
"""The number of steps from one garbage collection to the next."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a seed. `violation` is None if every promise was kept."""

    scenario: Scenario
    violation: Violation | None
    steps: int
    processes: int
    messages: int
    events: int
    runs: int
    failing: tuple[FailingFilter, ...] = ()
    """The users' filters that themselves raised errors."""

    @property
    def is_spoilt(self) -> bool:
        """Whether a filter that raises may have caused the violation. Then the seed says nothing about the product."""
        violation = self.violation
        return violation is not None and bool(self.failing) and may_explain(violation.rule)


class Supervisor:
    """Runs a world: first `steps` steps with faults, then without faults until no work is left."""

    def __init__(self, world: World, *, steps: int) -> None:
        self.world = world
        self._limit = steps
        self._now = 0.0
        """The virtual time, in seconds, at which the last process ended."""
        self._process: Process | None = None
        self._faults_ended_at = 0.0
        self._longest_lease = 0.0
        self._openings_before = 0
        self._claims_before = 0

    def run(self) -> Outcome:
        world = self.world
        gc.collect()
        # Seed Python's global random generator too, because users' filters may use it.
        random.seed(world.scenario.seed)
        try:
            while self._run_process():
                pass
        except Violation as violation:
            world.trace(f"VIOLATION {violation}")
            return self._outcome(violation)
        return self._outcome(None)

    def _outcome(self, violation: Violation | None) -> Outcome:
        world = self.world
        return Outcome(
            world.scenario,
            violation,
            world.steps,
            world.processes,
            sum(len(lane.messages) for stream in world.streams for lane in stream.broker.lanes),
            len(world.store.events),
            len(world.store.runs),
            world.checker.filter_errors.failing(),
        )

    def _run_process(self) -> bool:
        """Run a process until it ends or crashes. Return False once no work is left."""
        world = self.world
        world.processes += 1
        loop = VirtualLoop(world.faults.random, self._now, self._step)
        loop.set_exception_handler(self._on_loop_error)
        world.time = world.store.time = loop.time
        world.pass_time = loop.pass_time
        process = self._process = Process(world, loop)
        asyncio.set_event_loop(loop)
        task = loop.create_task(process.run())
        try:
            loop.run_until_complete(task)
        except Crash:
            world.trace("CRASH")
        except Finished:
            return False
        except Deadlock:
            reason = self._unfinished()
            rule = "L1" if reason is not None else "L5"
            reason = reason or self._left(process)
            raise Violation(rule, f"no task can continue: {reason}") from None
        except Violation:
            raise
        except Exception as error:
            raise Violation("S8", f"the process died of {error!r}") from error
        else:
            world.trace("stopped in order, starts again")
        finally:
            self._now = loop.now
            unwind(process.kill, loop, task, world.faults, world.checker)
        for arrive in list(world.store.pending_commits.values()):
            arrive()
        world.store.pending_commits.clear()
        return True

    def _on_loop_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        process = self._process
        if process is not None and process.is_alive:
            self.world.checker.fail("S8", f"unhandled: {context.get('exception') or context}")

    def _step(self) -> None:
        world = self.world
        process = self._process
        assert process is not None
        world.steps += 1
        if world.steps % _COLLECT_EVERY == 0:
            gc.collect()
        for instance in process.instances:
            for stream in instance.host.manager.streams.values():
                if stream.group is not None:
                    world.checker.check_group(stream.group)
                    self._check_slow_subscribers(process, instance, stream.group)
        if world.checker.violation is not None:
            raise world.checker.violation
        if world.faults.are_over:
            if world.steps % 16 == 0:
                self._check_liveness(process)
        elif world.steps >= self._limit:
            self._end_faults(process)
        elif world.faults.occur(world.scenario.crash_rate):
            raise Crash

    def _check_slow_subscribers(self, process: Process, instance: Instance, group: Group) -> None:
        producer, catching_up = group.state.producer, self.world.checker.catching_up
        if (
            catching_up.is_on
            and catching_up.falls_behind
            and isinstance(producer, SimulatedProducer)
        ):
            now = process.loop.now - process.loop.passed
            self.world.checker.slow_subscribers.check(
                group, producer.lane_checker, is_store_slow=instance.is_full, now=now
            )

    def _end_faults(self, process: Process) -> None:
        world = self.world
        world.trace("from here on nothing goes wrong")
        world.faults.are_over = True
        world.health.end()
        for instance in process.instances:
            instance.connection.restore()
        self._faults_ended_at = process.loop.now
        self._openings_before = self._openings()
        self._claims_before = self._claims()
        # A dead instance seems to be alive, with room for streams, until its leases and its registration expire. If the
        # database's clock was set back, that takes longer.
        owners = world.store.owners
        expiries = [*owners.expiries.values(), *owners.instances.values()]
        now = world.store.now()
        left = max((expiry - now for expiry in expiries), default=timedelta())
        self._longest_lease = max(left.total_seconds(), 0.0)

    def _openings(self) -> int:
        return sum(stream.broker.sessions for stream in self.world.streams)

    def _claims(self) -> int:
        return sum(epoch for _, epoch in self.world.store.owners.leases.values())

    def _check_liveness(self, process: Process) -> None:
        reason, rule = self._unfinished(), "L1"
        if reason is None:
            reason, rule = self._left(process), "L5"
        if reason is None:
            self._check_stored(process)
            checker = self.world.checker
            missed = checker.catching_up.find_missed(checker.deleted)
            missed = missed or checker.replays.find_missed(checker.deleted)
            if missed is not None:
                raise Violation("S13", missed)
            raise Finished
        scenario, catching_up = self.world.scenario, self.world.checker.catching_up
        bound = (
            1200.0 + 6 * scenario.ack_timeout + 10 * scenario.restart_longest + self._longest_lease
        )
        if not (scenario.overflow_grace or (catching_up.is_on and catching_up.falls_behind)):
            # Without a grace, a subscriber with a full queue fails at once. The broker then redelivers the messages to
            # all subscribers, which may fail in turn. This can go on until the delivery limit.
            bound += scenario.delivery_limit * scenario.restart_longest
        if process.loop.now > self._faults_ended_at + bound:
            raise Violation(rule, f"{bound:.0f} s after the last fault: {reason}")
        often = 20 * len(self.world.streams)
        if self._openings() > self._openings_before + often:
            raise Violation("L3", f"streams are opened again and again: {reason}")
        if self._claims() > self._claims_before + often:
            raise Violation("L3", f"streams are claimed again and again: {reason}")
        # Allow more steps if more time is allowed, because each further attempt at a blocked lane takes steps.
        most = round(_STEPS_AFTER_FAULTS * bound / 1200.0)
        if self.world.steps > self._limit + most:
            raise Violation("L3", f"{most} steps after the last fault: {reason}")

    def _check_stored(self, process: Process) -> None:
        """Check that the store has stored or refused every event that was yielded under a current lease."""
        held = {one.fence for instance in process.instances for one in instance.leased_streams()}
        for timestamp, fence in self.world.store.derived_under.items():
            if fence in held and timestamp not in self.world.store.answered:
                raise Violation(
                    "L1", f"the event that was yielded under {fence} at {timestamp} is not stored"
                )

    def _unfinished(self) -> str | None:
        """Return a description of work that is left; None if no work is left."""
        world = self.world
        process = self._process
        assert process is not None
        if world.files is not None and world.files.is_busy:
            return "DAG files are being read or replaced, or a stream waits for them"
        for stream in world.streams:
            # A stream without watchers need not be read.
            if stream.watchers and (reason := self._unread(process, stream)) is not None:
                return reason
        for instance in process.instances:
            if instance.recorder.unsettled:
                return f"{instance.recorder.unsettled} events are not settled"
            if instance.recorder.unsettled_bytes or instance.recorder.is_full:
                return f"{instance.recorder.unsettled_bytes} bytes are not settled, but no events"
        if world.store.pending_commits:
            return "a commit has not arrived"
        return world.store.idle_reason()

    def _left(self, process: Process) -> str | None:
        """Return a description of rows, states or memory that finished work has left; None if nothing is left."""
        for stream in self.world.streams:
            hosting = process.hosting(stream)
            if hosting is None:
                continue
            watchers, lanes = sorted(stream.watchers), stream.broker.lanes
            left = self.world.checker.rest.find_left(*hosting, watchers, lanes)
            if left is not None:
                return left
        return None

    def _unread(self, process: Process, stream: Stream) -> str | None:
        """Return a description of work that is left for a stream with watchers; None if no work is left."""
        owners = self.world.store.owners
        if owners.is_free(stream.key, self.world.store.now()):
            # An instance hosts all triggers of a stream, or none of them. So if no instance has
            # room for all of the stream's triggers, the stream may stay without a host.
            if len(stream.triggers) > max(map(self._room, process.instances)):
                return None
            return f"{stream.key} fits into an instance, but no instance hosts it"
        owner, epoch = owners.leases[stream.key]
        assert owner is not None
        fence = Fence(stream.key, owner, epoch)
        hosted = process.hosted_under(fence)
        if hosted != stream.watchers.keys():
            return f"{fence} hosts the watchers {sorted(hosted)}, not {sorted(stream.watchers)}"
        if not stream.broker.is_finished:
            return f"{stream.key} is not read to its end"
        if (unread := self.world.checker.catching_up.find_unread(stream.key)) is not None:
            return unread
        session = stream.broker.session
        if session is not None and session.lane_checker is not None and session.lane_checker.paused:
            return f"{stream.key} still has the paused lanes {session.lane_checker.paused}"
        return None

    def _room(self, instance: Instance) -> int:
        """Return for how many more triggers the instance has room, according to the store."""
        owners, now = self.world.store.owners, self.world.store.now()
        return self.world.capacity - sum(
            len(stream.triggers)
            for stream in self.world.streams
            if owners.leases[stream.key][0] == instance.name and not owners.is_free(stream.key, now)
        )


def simulate(
    seed: int,
    *,
    steps: int = 1000,
    trace: Trace | None = None,
    prepare: Callable[[World], None] | None = None,
) -> Outcome:
    """Run one seed: first `steps` steps with faults, then without faults until no work is left.

    Call this function inside a `sandbox`.

    Args:
        trace: Called with (virtual seconds, step, line) for each traced action.
        prepare: Called before the first step, to replace the world's DAGs, streams and watchers.
    """
    world = World(draw_scenario(seed), trace=trace)
    if prepare is not None:
        prepare(world)
    outcome = Supervisor(world, steps=steps).run()
    # In a prepared world no task runs, so there is no work for executors and timetables.
    if prepare is None and outcome.violation is None and has_executors(seed):
        outcome = _with_executors(outcome, trace)
    if prepare is None and outcome.violation is None and has_timetables(seed):
        outcome = _with_schedulers(TimedWorld, outcome, trace)
    if prepare is None and outcome.violation is None and has_partitions(seed):
        outcome = _with_schedulers(PartitionedWorld, outcome, trace)
    return outcome


def _with_executors(outcome: Outcome, trace: Trace | None) -> Outcome:
    """Run the seed's second part, which simulates executors, in a separate world."""
    executors = ExecutorWorld(outcome.scenario.seed, first_step=outcome.steps, trace=trace)
    violation = None
    try:
        executors.run()
    except Violation as found:
        violation = found
    return replace(outcome, violation=violation, steps=executors.timeline.steps)


def _with_schedulers(kind: type[TimedWorld], outcome: Outcome, trace: Trace | None) -> Outcome:
    """Run the seed's third or fourth part, which simulates timetables or partition keys, in a separate world."""
    timed = kind(outcome.scenario, first_step=outcome.steps, trace=trace)
    violation = None
    try:
        timed.run()
    except Violation as found:
        violation = found
    runs = outcome.runs + len(timed.store.runs)
    return replace(outcome, violation=violation, steps=timed.steps, runs=runs)
