"""What executors share: the clock, the faults, and the check of what is executed."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from triggerer.testing.simulation.checks.checker import Violation

Trace = Callable[[float, int, str], None]


class Attempt(NamedTuple):
    """An attempt of a run, as one executor has claimed it."""

    executor: str
    run_pk: int
    number: int


class Timeline:
    """One clock for the database, the kernel and all executors, and what happens by it outside their event loops.

    Draws from a generator of its own, so that the other draws of a seed stay what they were.
    """

    def __init__(self, seed: int, *, first_step: int, trace: Trace | None) -> None:
        self.random = Random(f"executors {seed}")
        self.lease = self.random.choice((10.0, 15.0, 30.0))
        sweeps = Random(f"sweeps {seed}")
        self.sweep_every = self.lease * sweeps.choice((0.25, 10.0))
        """How often an executor sweeps where nothing asks it to."""
        self.now = 0.0
        """In seconds."""
        self.steps = first_step
        self.are_faults_over = False
        self._trace = trace
        self._agenda: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = 0

    def on_step(self, loop_time: float) -> None:
        """An executor does something, at its loop's time."""
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
        """Do what is due next."""
        heapq.heappop(self._agenda)[2]()

    def occurs(self, rate: float) -> bool:
        """Whether a fault does, given its rate."""
        return not self.are_faults_over and self.random.random() < rate

    def trace(self, what: str, **details: Any) -> None:
        """Add a line to the trace, if there is one."""
        if self._trace is not None:
            told = " ".join(f"{name}={value}" for name, value in details.items())
            self._trace(self.now, self.steps, f"{what} {told}")


class ExecutionChecker:
    """Is told by the workers' processes when they begin and are gone: of one run there is one at a time (S12)."""

    def __init__(self, timeline: Timeline) -> None:
        self.violation: Violation | None = None
        self.executing: dict[int, Attempt] = {}
        """By run."""
        self._timeline = timeline

    def begin(self, attempt: Attempt) -> None:
        self._timeline.trace("executes", **attempt._asdict())
        other = self.executing.get(attempt.run_pk)
        if other is not None and self.violation is None:
            self.violation = Violation("S12", f"{other} and {attempt} are executed at once")
        self.executing[attempt.run_pk] = attempt

    def end(self, attempt: Attempt) -> None:
        if self.executing.get(attempt.run_pk) == attempt:
            self._timeline.trace("ends", **attempt._asdict())
            del self.executing[attempt.run_pk]
