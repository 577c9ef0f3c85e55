"""Draws the scenario of a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from triggerer.testing.simulation.kernel.scenario import (
    AMPLE,
    AMPLE_BYTES,
    Scenario,
    has_busy_queue,
    has_instant_answers,
    has_joint_advances,
    has_outages,
    has_poison,
    has_relapses,
    has_shared_triggers,
    sizes_of,
)

_ONE_STREAM: Final[Mapping[str, Any]] = {
    "streams": 1,
    "constructor_fault_rate": 0.0,
    "capacity": AMPLE,
    "has_files": False,
}
"""For scenarios with one main kind of fault: there is one stream, and all its watchers can be made and hosted."""
_AMPLE_ROOM: Final[Mapping[str, Any]] = {
    "max_outstanding_per_lane": 10_000,
    "max_outstanding_bytes": AMPLE_BYTES,
    "max_outstanding_bytes_per_lane": AMPLE_BYTES,
}


def draw_scenario(seed: int) -> Scenario:
    """Draw the scenario of a seed.

    Many seeds leave out some kinds of faults, so that the simulation gets further with the other kinds.
    """
    rng = random.Random(seed)
    sizes = sizes_of(seed, "bounds")

    def rate(highest: float) -> float:
        return 0.0 if rng.random() < 0.35 else highest * rng.random()

    pick = rng.choice
    scenario = Scenario(
        seed=seed,
        streams=pick((1, 1, 1, 2)),
        lanes=pick((1, 2, 3)),
        watchers=pick((1, 2, 2, 3)),
        is_acknowledged=rng.random() < 0.85,
        is_log=rng.random() < 0.7,
        is_exclusive=rng.random() < 0.5,
        side_by_side=rng.random() < 0.4,
        delivery_limit=pick((3, 8, 50)),
        redelivery_delay=pick((0.1, 1.0, 5.0)),
        ack_timeout=pick((5.0, 30.0, 300.0)),
        queue_size=pick((2, 8, 64)),
        overflow_grace=pick((0.0, 0.5, 5.0)),
        max_outstanding=pick((3, 20, 200)),
        max_pending=pick((2, 20, 200)),
        burst=pick((1, 4, 256)),
        max_batch_rows=pick((1, 5, 100)),
        restart_longest=pick((1.0, 10.0, 60.0)),
        lease=pick((15.0, 60.0, 240.0)),
        latency=pick((0.001, 0.01, 0.1)),
        crash_rate=rate(0.004),
        action_interval=pick((0.2, 1.0, 5.0)),
        broker_fault_rate=rate(0.05),
        store_fault_rate=rate(0.3),
        filter_fault_rate=rate(0.1),
        constructor_fault_rate=rate(0.3),
        slow_rate=rate(0.1),
        max_outstanding_per_lane=pick((1, 2, 5, 10_000, 10_000, 10_000)),
        pauses_lanes=rng.random() < 0.6,
        capacity=pick((3, 4, 6, AMPLE, AMPLE, AMPLE)),
        has_files=random.Random(f"has files {seed}").random() < 0.25,
        max_pending_bytes=sizes.choice((1, 100, 500, AMPLE_BYTES, AMPLE_BYTES)),
        max_outstanding_bytes=sizes.choice((300, 2_000, AMPLE_BYTES, AMPLE_BYTES)),
        max_outstanding_bytes_per_lane=sizes.choice((1, 150, 1_000, AMPLE_BYTES, AMPLE_BYTES)),
    )
    if has_joint_advances(scenario):
        scenario = replace(scenario, side_by_side=True)
    for is_so, with_it in _WITH_LITTLE_ELSE:
        if is_so(scenario):
            return _with_sharing(with_it(scenario))
    # If the capacity is limited, there are several streams, so that the hosts can divide them.
    has_room = scenario.capacity == AMPLE
    return _with_sharing(scenario if has_room else replace(scenario, streams=pick((3, 4))))


def _with_sharing(scenario: Scenario) -> Scenario:
    """Add watchers if triggers are shared."""
    if not has_shared_triggers(scenario):
        return scenario
    return replace(scenario, watchers=max(scenario.watchers + 1, 3))


def _with_busy_queue(scenario: Scenario) -> Scenario:
    return replace(
        scenario,
        lanes=1,
        watchers=3,
        crash_rate=0.0,
        action_interval=20.0,
        broker_fault_rate=0.0,
        **_ONE_STREAM,
    )


def _with_outages(scenario: Scenario) -> Scenario:
    bounds = random.Random(f"{scenario.seed}/bounds in outages")
    return replace(
        scenario,
        lanes=1,
        watchers=3,
        crash_rate=0.0,
        delivery_limit=50,
        redelivery_delay=bounds.choice((0.1, 0.1, 1.0)),
        max_outstanding_per_lane=bounds.choice((2, 3, 4, 5)),
        pauses_lanes=bounds.random() < 0.25,
        restart_longest=bounds.choice((1.0, 1.0, 10.0)),
        broker_fault_rate=0.0,
        slow_rate=bounds.choice((0.0, 0.05, 0.1)),
        action_interval=bounds.choice((0.2, 1.0)),
        **_ONE_STREAM,
    )


def _with_poison(scenario: Scenario) -> Scenario:
    bounds = random.Random(f"{scenario.seed}/bounds with poison")
    return replace(
        scenario,
        lanes=bounds.choice((1, 1, 2)),
        watchers=3,
        crash_rate=bounds.choice((0.0, 0.001, 0.002)),
        redelivery_delay=0.1,
        restart_longest=1.0,
        action_interval=bounds.choice((5.0, 20.0)),
        latency=0.01,
        lease=15.0,
        store_fault_rate=bounds.choice((0.0, 0.0, 0.1)),
        broker_fault_rate=bounds.choice((0.0, 0.0, 0.02)),
        filter_fault_rate=bounds.choice((0.0, 0.02)),
        slow_rate=bounds.choice((0.0, 0.05)),
        max_outstanding=200,
        **_ONE_STREAM,
        **_AMPLE_ROOM,
    )


def _with_relapses(scenario: Scenario) -> Scenario:
    bounds = random.Random(f"{scenario.seed}/bounds with relapses")
    return replace(
        scenario,
        lanes=bounds.choice((1, 1, 2)),
        watchers=bounds.choice((2, 3)),
        crash_rate=bounds.choice((0.0, 0.0, 0.001)),
        redelivery_delay=0.1,
        ack_timeout=5.0,
        restart_longest=1.0,
        queue_size=64,
        max_pending=200,
        max_pending_bytes=AMPLE_BYTES,
        max_batch_rows=100,
        action_interval=bounds.choice((5.0, 20.0)),
        latency=0.01,
        store_fault_rate=bounds.choice((0.0, 0.0, 0.1)),
        broker_fault_rate=0.0,
        filter_fault_rate=0.0,
        slow_rate=0.0,
        max_outstanding=200,
        **_ONE_STREAM,
        **_AMPLE_ROOM,
    )


def _with_instant_answers(scenario: Scenario) -> Scenario:
    bounds = random.Random(f"{scenario.seed}/bounds of instant answers")
    return replace(
        scenario,
        lanes=bounds.choice((1, 1, 2)),
        watchers=bounds.choice((2, 3)),
        crash_rate=0.0,
        delivery_limit=8,
        redelivery_delay=0.1,
        action_interval=20.0,
        broker_fault_rate=0.0,
        store_fault_rate=0.0,
        slow_rate=0.0,
        queue_size=64,
        max_outstanding=bounds.choice((2, 3, 4)),
        max_pending=200,
        **_ONE_STREAM,
        **_AMPLE_ROOM,
    )


_WITH_LITTLE_ELSE: Final[
    tuple[tuple[Callable[[Scenario], bool], Callable[[Scenario], Scenario]], ...]
] = (
    (has_busy_queue, _with_busy_queue),
    (has_outages, _with_outages),
    (has_poison, _with_poison),
    (has_relapses, _with_relapses),
    (has_instant_answers, _with_instant_answers),
)
"""The kinds of seeds that mainly try one thing, each with the function that adapts a scenario."""
