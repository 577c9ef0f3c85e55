"""Pools limit the number of runs that use a shared resource at once. This module chooses the runs that may begin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

DEFAULT_SLOTS: Final = 1
"""The number of slots of a pool that the configuration no longer names. Older queued runs may still name the pool."""


@dataclass(frozen=True, slots=True)
class QueuedRun:
    """A run that waits for a worker."""

    run_pk: int
    pools: frozenset[str]
    """The pools of the run's tasks. From its start to its end, the run occupies a slot of each of these pools."""


def pools_in(column: str | None) -> frozenset[str]:
    """Return the pools in the text of a database column, where commas separate them."""
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
    """Return up to `limit` of the queued runs that may begin now, in order.

    A run never overtakes an earlier waiting run if they share a pool. So a run that needs several pools gets all of
    them in the end. A run that shares no pool with a waiting run need not wait for it.

    Args:
        running: The pools of each running run.
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
