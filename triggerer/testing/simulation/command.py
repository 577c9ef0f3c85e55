"""The simulation's command line: runs many seeds side by side, or one seed with its trace."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any

from triggerer.testing.simulation.failing_filters import FailingFilter, join
from triggerer.testing.simulation.kernel.sandbox import sandbox
from triggerer.testing.simulation.supervisor import Outcome, simulate
from triggerer.testing.simulation.worlds.world import World

_CHUNK = 10
_ADVICE = (
    "  let the filter reject what it cannot read (reject_shared_stream_event), or name a file of"
    " messages that it can read (--messages)"
)
Prepare = Callable[[World], None]


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and run. The process exits with 1 if a promise was broken."""
    parser = argparse.ArgumentParser(
        prog="python -m triggerer.testing.simulation",
        description="Look for a seed that breaks a promise.",
    )
    parser.add_argument("--seeds", type=int, default=100, help="number of seeds to try")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--steps", type=int, default=1000, help="steps with faults; then the seed runs to its end"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of processes")
    parser.add_argument("--replay", type=int, metavar="SEED", help="show the trace of one seed")
    given = parser.parse_args(arguments)
    if given.replay is not None:
        sys.exit(replay(given.replay, steps=given.steps))
    sys.exit(search(given.start, given.seeds, steps=given.steps, jobs=given.jobs))


def search(
    start: int, seeds: int, *, steps: int, jobs: int = 1, prepare: Prepare | None = None
) -> int:
    """Try `seeds` seeds from `start` on, and stop at the first that breaks a promise. Return the exit code."""
    began = time.monotonic()
    tried = total_steps = messages = events = runs = 0
    failing: dict[str, FailingFilter] = {}
    for outcome in outcomes(range(start, start + seeds), steps=steps, jobs=jobs, prepare=prepare):
        tried += 1
        total_steps += outcome.steps
        messages += outcome.messages
        events += outcome.events
        runs += outcome.runs
        failing = join([*failing.values(), *outcome.failing])
        if outcome.violation is not None:
            _say(f"seed {outcome.scenario.seed} at step {outcome.steps}{_verdict(outcome)}")
            _say(f"  show it: --replay {outcome.scenario.seed} --steps {steps}")
            _say_failing(failing)
            return 1
    took = time.monotonic() - began
    _say(
        f"{tried} seeds kept every promise: {total_steps} steps, {messages} messages, {events} asset"
        f" events, {runs} runs in {took:.1f} s ({tried / max(took, 0.001):.1f} seeds/s)"
    )
    _say_failing(failing)
    return 1 if any(one.is_hopeless for one in failing.values()) else 0


def _verdict(outcome: Outcome) -> str:
    if outcome.is_spoilt:
        return " has no verdict, because one of your filters raises, which may explain the broken promise"
    return f": {outcome.violation}"


def _say_failing(failing: dict[str, FailingFilter]) -> None:
    for one in failing.values():
        _say(f"  {one}")
    if failing:
        _say(_ADVICE)


def outcomes(
    seeds: range, *, steps: int, jobs: int = 1, prepare: Prepare | None = None
) -> Iterator[Outcome]:
    """Yield the outcome of each seed, in order."""
    run = partial(_chunk, steps=steps, prepare=prepare)
    chunks = [seeds[at : at + _CHUNK] for at in range(0, len(seeds), _CHUNK)]
    if jobs <= 1 or len(chunks) <= 1:
        for chunk in chunks:
            yield from run(chunk)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(chunks)), mp_context=context) as pool:
        try:
            for found in pool.map(run, chunks):
                yield from found
        finally:
            pool.shutdown(cancel_futures=True)


def _chunk(seeds: range, *, steps: int, prepare: Prepare | None) -> list[Outcome]:
    with sandbox():
        found: list[Outcome] = []
        for seed in seeds:
            found.append(simulate(seed, steps=steps, prepare=prepare))
            if found[-1].violation is not None:
                break
        return found


def replay(seed: int, *, steps: int, prepare: Prepare | None = None) -> int:
    """Print the scenario of a seed and its trace. Return the exit code."""

    def trace(now: float, step: int, line: str) -> None:
        _say(f"{now:10.3f} s {step:6d}  {line}")

    def log(_: object, level: str, event: dict[str, Any]) -> dict[str, Any]:
        fields = {name: value for name, value in event.items() if name != "event"}
        _say(f"{'':20}log {level}: {event['event']} {fields or ''}")
        return event

    with sandbox(log):
        outcome = simulate(seed, steps=steps, trace=trace, prepare=prepare)
    _say(
        "scenario: "
        + " ".join(f"{name}={value}" for name, value in asdict(outcome.scenario).items())
    )
    if outcome.is_spoilt:
        _say(f"seed {seed}{_verdict(outcome)}")
    else:
        _say(str(outcome.violation or "every promise was kept"))
    _say_failing(join(outcome.failing))
    is_hopeless = any(one.is_hopeless for one in outcome.failing)
    return 1 if outcome.violation is not None or is_hopeless else 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
