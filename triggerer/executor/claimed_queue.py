"""Runs that are claimed ahead of the workers, and how many there may be. Synchronous; no store, no clock."""

from __future__ import annotations

from typing import Final

from triggerer.domain.attempts import RunOrder

_AHEAD_S: Final = 0.2
"""So much work is claimed ahead: a claimed run starts within about this time."""
_MOST_AHEAD: Final = 64
_WEIGHT: Final = 0.2

STALE_SECONDS: Final = 2.0
"""A claimed run that has waited this long for a worker is queued again: another executor may have a free one."""


class PrefetchLimit:
    """How many runs are worth claiming ahead, by how long runs have taken lately.

    A claim costs one transaction, however many runs it takes. If runs end at once and are claimed one
    by one, workers wait for the store. If runs take longer than a claim, claiming them ahead only keeps
    them from another executor that could start them now.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._seconds: float | None = None

    def note(self, seconds: float) -> None:
        """A run has taken this long."""
        before = seconds if self._seconds is None else self._seconds
        # A long run counts in full: nothing is claimed ahead while runs are slow.
        weight = _WEIGHT if seconds < before else 1.0
        self._seconds = before + weight * (seconds - before)

    @property
    def runs(self) -> int:
        if self._seconds is None:
            return 0
        return min(_MOST_AHEAD, int(self._workers * _AHEAD_S / max(self._seconds, 0.001)))


class ClaimedQueue:
    """Runs that are claimed and wait for a worker, oldest first."""

    def __init__(self) -> None:
        self._orders: dict[int, RunOrder] = {}

    def __len__(self) -> int:
        return len(self._orders)

    def waiting(self) -> list[RunOrder]:
        return list(self._orders.values())

    def add(self, order: RunOrder) -> None:
        self._orders[order.run_pk] = order

    def take(self, run_pk: int) -> RunOrder | None:
        return self._orders.pop(run_pk, None)

    def take_all(self) -> list[RunOrder]:
        taken = list(self._orders.values())
        self._orders.clear()
        return taken

    def room(self, *, free: int, ahead: int, warming: bool) -> int:
        """How many runs to claim now.

        Args:
            free: Workers that have nothing to do.
            warming: A Spark session is being opened. Runs that wait for it take no room from others.
        """
        waiting = len(self._orders)
        if warming:
            held = sum(order.needs_spark for order in self._orders.values())
            waiting -= min(held, free)
        room = free + ahead - waiting
        # While all workers are busy, not one by one: a claim is worth it once half of the room is free.
        if free == 0 and room * 2 < ahead:
            return 0
        return max(room, 0)
