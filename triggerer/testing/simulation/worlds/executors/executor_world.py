"""A separate world of two executors that execute the runs of one store. Each executor has its own event loop.

An executor may stand still, as after SIGSTOP. Then its event loop does not run, while its workers, its guard and the
database continue.
"""

from __future__ import annotations

from triggerer.testing.simulation.checks.checker import Violation
from triggerer.testing.simulation.worlds.executors.execution import (
    Attempt,
    ExecutionChecker,
    Timeline,
    Trace,
)
from triggerer.testing.simulation.worlds.executors.executor import SimulatedExecutor
from triggerer.testing.simulation.worlds.executors.executor_store import ExecutorStore

_LEASES_WITH_FAULTS = 8
_LEASES_AFTERWARDS = 40
"""All runs must have ended this many leases after the faults.

A run takes up to three leases, and a dead executor's run is queued again after one.
"""
_ACTIONS = ("queue", "stand still", "cut off", "crash", "restart", "end the guard")
_WEIGHTS = (5, 4, 2, 1, 1, 1)


class ExecutorWorld:
    """Runs two executors until every run has ended."""

    def __init__(self, seed: int, *, first_step: int = 0, trace: Trace | None = None) -> None:
        self.timeline = Timeline(seed, first_step=first_step, trace=trace)
        self.store = ExecutorStore()
        self._checker = ExecutionChecker(self.timeline)
        self._executors: list[SimulatedExecutor] = []
        self._processes = 0
        self._forgotten_since: dict[Attempt, float] = {}

    def run(self) -> None:
        """Run until every run has ended.

        Raises:
            Violation: A promise was broken.
        """
        self.timeline.trace("two executors share runs", lease=self.timeline.lease)
        for _ in range(2):
            self._start()
            self.store.add_run()
        self._plan_action()
        try:
            while not self._is_finished():
                self._next()
                if self._checker.violation is not None:
                    raise self._checker.violation
                if self.timeline.are_faults_over:
                    self._check_forgotten()
        except Violation as violation:
            self.timeline.trace(f"VIOLATION {violation}")
            raise
        finally:
            for executor in self._executors:
                executor.crash()

    def _is_finished(self) -> bool:
        if not self.timeline.are_faults_over:
            return False
        left = [run for run in self.store.runs.values() if run.state in {"queued", "running"}]
        bound = self.timeline.lease * (_LEASES_WITH_FAULTS + _LEASES_AFTERWARDS)
        # Allow the time until one more sweep, because only a sweep finds the runs of a dead executor.
        bound += self.timeline.sweep_every
        if left and self.timeline.now > bound:
            raise Violation("L1", f"{left[0]} has not ended long after the last fault")
        return not left and not self._checker.executing

    def _check_forgotten(self) -> None:
        """Check that no run stays assigned for long to an executor that does not execute it."""
        timeline, before = self.timeline, self._forgotten_since
        forgotten = [one for executor in self._executors for one in executor.forgotten()]
        self._forgotten_since = {one: before.get(one, timeline.now) for one in forgotten}
        for one, since in self._forgotten_since.items():
            if timeline.now - since > timeline.lease:
                raise Violation("L1", f"no executor executes {one}, and it is not queued again")

    def _next(self) -> None:
        """Do what is due next: an action of the `Timeline`, or a turn of an executor's event loop."""
        timeline = self.timeline
        due, chosen = timeline.next_due, None
        for executor in self._executors:
            next_due = executor.next_due
            if next_due is not None and next_due < due:
                due, chosen = next_due, executor
        timeline.now = max(timeline.now, due)
        if chosen is None:
            timeline.act()
        elif not chosen.turn():
            self._executors.remove(chosen)
            self._start()

    # Actions

    def _start(self) -> None:
        # An executor gets a new id at every start.
        self._processes += 1
        name = f"executor {self._processes}"
        self._executors.append(SimulatedExecutor(self.timeline, self.store, self._checker, name))

    def _plan_action(self) -> None:
        timeline = self.timeline
        timeline.call_later(timeline.random.expovariate(3.0 / timeline.lease), self._act)

    def _act(self) -> None:
        timeline = self.timeline
        if timeline.now > timeline.lease * _LEASES_WITH_FAULTS:
            self._end_faults()
            return
        self._plan_action()
        action = timeline.random.choices(_ACTIONS, _WEIGHTS)[0]
        executor = timeline.random.choice(self._executors)
        seconds = timeline.random.uniform(0.0, 2.5 * timeline.lease)
        timeline.trace(action, executor=executor.name, seconds=round(seconds, 3))
        match action:
            case "queue":
                self.store.add_run()
            case "stand still":
                until = timeline.now + seconds
                executor.stands_still_until = max(executor.stands_still_until, until)
            case "cut off":
                executor.connection.is_cut_off = True
                timeline.call_later(seconds, executor.connection.restore)
            case "crash":
                self._executors.remove(executor)
                executor.crash()
                self._start()
            case "restart":
                executor.loop.call_soon_threadsafe(executor.stop)
            case _:
                if executor.guard is not None:
                    executor.guard.end()

    def _end_faults(self) -> None:
        self.timeline.are_faults_over = True
        for executor in self._executors:
            executor.stands_still_until = 0.0
            executor.connection.restore()
        self.timeline.trace("from here on nothing goes wrong")
