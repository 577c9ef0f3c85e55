"""Pools: so many runs at a time may use what a pool stands for. Which queued runs may begin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

DEFAULT_SLOTS: Final = 1
"""The slots of a pool that the configuration does not name: runs may be queued that were made when it did."""


@dataclass(frozen=True, slots=True)
class QueuedRun:
    """A run that waits for a worker."""

    run_pk: int
    pools: frozenset[str]
    """A run takes one slot of each from its beginning to its end: its tasks are executed one after the other."""


def pools_in(column: str | None) -> frozenset[str]:
    """Return the pools that a row names."""
    return frozenset() if column is None else frozenset(column.split(","))


def slots_of(pool: str, slots: Mapping[str, int]) -> int:
    """Return how many slots a pool has."""
    return slots.get(pool, DEFAULT_SLOTS)


def choose(
    queued: Sequence[QueuedRun],
    running: Iterable[frozenset[str]],
    slots: Mapping[str, int],
    *,
    limit: int,
) -> list[int]:
    """Return the runs that may begin now, at most `limit`, of those that wait, in this order.

    None overtakes another that waits for one of its pools: so one that needs several gets them in the end. Those that
    need other pools, or none, go on.

    Args:
        running: The pools of each run that has begun.
    """
    used = Counter(pool for pools in running for pool in pools)
    waited_for: set[str] = set()
    chosen: list[int] = []
    for run in queued:
        if len(chosen) == limit:
            break
        if run.pools & waited_for or any(used[p] >= slots_of(p, slots) for p in run.pools):
            waited_for |= run.pools
            continue
        used.update(run.pools)
        chosen.append(run.run_pk)
    return chosen
