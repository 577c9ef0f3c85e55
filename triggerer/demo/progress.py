"""Reads the demo's progress from the counts in the store."""

from __future__ import annotations

from typing import Final

from triggerer.domain.runs import ACTIVE_STATES, RunState
from triggerer.store.listing.counts import Counts

JOIN: Final = "join_flights_with_weather"
ANSWER: Final = "which_weather_delays_which_carrier"
WATCHED: Final = ("flights", "weather")


def watched_events(counts: Counts) -> int:
    """Return the number of messages that have an asset event."""
    return sum(counts.events.get(name, 0) for name in WATCHED)


def waiting_for_join(counts: Counts, asset: str) -> int:
    """Return the number of an asset's events that no run of the DAG `JOIN` has taken yet."""
    return counts.waiting.get((JOIN, asset), 0)


def failed_runs(counts: Counts) -> int:
    """Return the number of runs that ended without success."""
    return sum(
        count
        for (_, state), count in counts.runs.items()
        if state.is_final and state is not RunState.SUCCESS
    )


def is_idle(counts: Counts) -> bool:
    """Return whether no run is active, and no run can start until another message comes.

    Events of one asset may still wait, because a run of the DAG `JOIN` needs events of both assets.
    """
    active = any(state in ACTIVE_STATES for _, state in counts.runs)
    both_sides = all(waiting_for_join(counts, asset) for asset in WATCHED)
    others = any(dag != JOIN for dag, _ in counts.waiting)
    return not active and not both_sides and not others


def awaited(counts: Counts, published: int) -> str | None:
    """Return the next step that published messages wait for; None if all are processed."""
    if watched_events(counts) < published:
        return "waiting for every message to become an asset event"
    if is_idle(counts):
        return None
    active = any(state in ACTIVE_STATES for _, state in counts.runs)
    if active and not counts.tasks:
        # No run has started a task, because the first Spark session is still opening.
        return "waiting for Spark to start"
    working = [what for dag, what in _WORK.items() if (dag, RunState.RUNNING) in counts.runs]
    if working:
        return f"Spark {' and '.join(working)}"
    return f"waiting for {'a worker to take a run' if active else 'the scheduler to queue a run'}"


_WORK: Final = {JOIN: "joins flights with weather", ANSWER: "works out the answer"}
