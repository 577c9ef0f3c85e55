"""The clock, the faults and the S12 check that all simulated executors use."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from triggerer.testing.simulation.checks.checker import Violation

Trace = Callable[[float, int, str], None]


class Attempt(NamedTuple):
    """An attempt of a run that one executor has claimed."""

    executor: str
    run_pk: int
    number: int


class Timeline:
    """One clock for the database, the operating system's kernel and all executors.

    The agenda lists the actions that happen outside the executors' event loops.

    The timeline has its own random generator, so that its draws do not change the seed's other random choices.
    """

    def __init__(self, seed: int, *, first_step: int, trace: Trace | None) -> None:
        self.random = Random(f"executors {seed}")
        self.lease = self.random.choice((10.0, 15.0, 30.0))
        sweeps = Random(f"sweeps {seed}")
        self.sweep_every = self.lease * sweeps.choice((0.25, 10.0))
        """The seconds between two regular sweeps of an executor."""
        self.now = 0.0
        """The virtual time, in seconds."""
        self.steps = first_step
        self.are_faults_over = False
        self._trace = trace
        self._agenda: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = 0

    def on_step(self, loop_time: float) -> None:
        """Record a step of an executor, at its loop's time."""
        self.steps += 1
        self.now = max(self.now, loop_time)

    def call_at(self, when: float, act: Callable[[], object]) -> None:
        self._numbers += 1
        heapq.heappush(self._agenda, (when, self._numbers, act))

    def call_later(self, delay: float, act: Callable[[], object]) -> None:
        self.call_at(self.now + delay, act)

    @property
    def next_due(self) -> float:
        return self._agenda[0][0] if self._agenda else float("inf")

    def act(self) -> None:
        """Perform the next action of the agenda."""
        heapq.heappop(self._agenda)[2]()

    def occurs(self, rate: float) -> bool:
        """Draw whether a fault with this rate occurs now."""
        return not self.are_faults_over and self.random.random() < rate

    def trace(self, what: str, **details: Any) -> None:
        """Add a line to the trace, if there is one."""
        if self._trace is not None:
            text = " ".join(f"{name}={value}" for name, value in details.items())
            self._trace(self.now, self.steps, f"{what} {text}")


class ExecutionChecker:
    """Checks that a run has at most one worker process at a time (S12)."""

    def __init__(self, timeline: Timeline) -> None:
        self.violation: Violation | None = None
        self.executing: dict[int, Attempt] = {}
        """By run, the attempt that a process executes now."""
        self._timeline = timeline

    def begin(self, attempt: Attempt) -> None:
        self._timeline.trace("executes", **attempt._asdict())
        other = self.executing.get(attempt.run_pk)
        if other is not None and self.violation is None:
            self.violation = Violation("S12", f"{other} and {attempt} run at the same time")
        self.executing[attempt.run_pk] = attempt

    def end(self, attempt: Attempt) -> None:
        if self.executing.get(attempt.run_pk) == attempt:
            self._timeline.trace("ends", **attempt._asdict())
            del self.executing[attempt.run_pk]
