"""The queue of runs that an executor claims before a worker is free. Decides how many it claims."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

from triggerer.domain.attempts import RunOrder

_AHEAD_S: Final = 0.2
"""How many seconds of work are claimed before a worker is free."""
_MOST_AHEAD: Final = 64
_WEIGHT: Final = 0.2
"""The weight of a run that is shorter than the moving average of durations. A longer run replaces
the average.
"""

STALE_SECONDS: Final = 2.0
"""Once the oldest claimed run has waited this long for a worker, all claimed runs are queued again: another executor
may have a free worker."""


class PrefetchLimit:
    """Computes how many runs to claim ahead, from the durations of recent runs.

    A claim costs one transaction for any number of runs. If short runs were claimed one by one, workers would wait for
    the store. The longer the runs are, the fewer are claimed ahead, because another executor may have a free worker for
    them.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._seconds: float | None = None

    def record(self, seconds: float) -> None:
        """Record the duration of a run."""
        before = seconds if self._seconds is None else self._seconds
        # A long run counts in full, so that nothing is claimed ahead while runs are slow.
        weight = _WEIGHT if seconds < before else 1.0
        self._seconds = before + weight * (seconds - before)

    @property
    def runs(self) -> int:
        if self._seconds is None:
            return 0
        return min(_MOST_AHEAD, int(self._workers * _AHEAD_S / max(self._seconds, 0.001)))


class ClaimedQueue:
    """Runs that are claimed and wait for a worker, oldest first.

    Args:
        now: A monotonic clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._orders: dict[int, RunOrder] = {}
        self._since: dict[int, float] = {}
        """When each run began to wait, by primary key; earliest first."""

    def __len__(self) -> int:
        return len(self._orders)

    @property
    def stale_in_s(self) -> float:
        """The number of seconds until the oldest run has waited for `STALE_SECONDS`; infinite without a run."""
        first = next(iter(self._since.values()), math.inf)
        return max(0.0, first + STALE_SECONDS - self._now())

    def waiting(self) -> list[RunOrder]:
        return list(self._orders.values())

    def add(self, order: RunOrder) -> None:
        self._orders[order.run_pk] = order
        self._since[order.run_pk] = self._now()

    def take(self, run_pk: int) -> RunOrder | None:
        self._since.pop(run_pk, None)
        return self._orders.pop(run_pk, None)

    def take_all(self) -> list[RunOrder]:
        taken = list(self._orders.values())
        self._orders.clear()
        self._since.clear()
        return taken

    def wait_again(self) -> None:
        """Let all runs wait for a worker for another `STALE_SECONDS`."""
        self._since = dict.fromkeys(self._since, self._now())

    def room(self, *, free: int, ahead: int, warming: bool) -> int:
        """Return the number of runs to claim now.

        Args:
            free: The number of idle workers.
            ahead: The number of runs to claim beyond the idle workers, see `PrefetchLimit`.
            warming: True while a Spark session opens. Claimed runs that need Spark wait for the session and take no
                idle worker, so the idle workers can execute further runs.
        """
        waiting = len(self._orders)
        if warming:
            reserved = sum(order.needs_spark for order in self._orders.values())
            waiting -= min(reserved, free)
        room = free + ahead - waiting
        # If all workers are busy, claim only if the queue has fewer than half of the `ahead` runs. Otherwise the end of
        # each run would cause a claim, and so a transaction.
        if free == 0 and room * 2 < ahead:
            return 0
        return max(room, 0)
