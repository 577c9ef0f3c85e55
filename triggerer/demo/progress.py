"""How far the demo is, as the store shows it."""

from __future__ import annotations

from typing import Final

from triggerer.domain.runs import ACTIVE_STATES, RunState
from triggerer.store.listing.counts import Counts

JOIN: Final = "join_flights_with_weather"
ANSWER: Final = "which_weather_delays_which_carrier"
WATCHED: Final = ("flights", "weather")


def watched_events(counts: Counts) -> int:
    """Return how many messages have become asset events."""
    return sum(counts.events.get(name, 0) for name in WATCHED)


def waiting_for_join(counts: Counts, asset: str) -> int:
    """Return how many events of one side wait for the other, or for the run before."""
    return counts.waiting.get((JOIN, asset), 0)


def failed_runs(counts: Counts) -> int:
    """Return how many runs ended in any way but success."""
    return sum(
        count
        for (_, state), count in counts.runs.items()
        if state.is_final and state is not RunState.SUCCESS
    )


def is_idle(counts: Counts) -> bool:
    """Whether nothing moves unless another message comes.

    What waits on one side of the join does not count: it needs an event of the other side too.
    """
    active = any(state in ACTIVE_STATES for _, state in counts.runs)
    both_sides = all(waiting_for_join(counts, asset) for asset in WATCHED)
    others = any(dag != JOIN for dag, _ in counts.waiting)
    return not active and not both_sides and not others


def awaited(counts: Counts, published: int) -> str | None:
    """Say what has to happen next before all that was published has gone all its way; None: it has."""
    if watched_events(counts) < published:
        return "waiting for every message to become an asset event"
    if is_idle(counts):
        return None
    active = any(state in ACTIVE_STATES for _, state in counts.runs)
    if active and not counts.tasks:
        # Runs are kept back while the first session is opened.
        return "waiting for Spark to start"
    working = [what for dag, what in _WORK.items() if (dag, RunState.RUNNING) in counts.runs]
    if working:
        return f"Spark {' and '.join(working)}"
    return f"waiting for {'a worker to take a run' if active else 'the scheduler to queue a run'}"


_WORK: Final = {JOIN: "joins flights with weather", ANSWER: "works out the answer"}
