"""How many runs to claim ahead of the workers, and which. Synchronous; no store, no clock."""

from __future__ import annotations

from typing import Final

from triggerer.execution.protocol import RunOrder

_AHEAD_S: Final = 0.2
"""Claimed runs ought to start within this time: for as long, one claim may serve for many."""
_MOST_AHEAD: Final = 64
_WEIGHT: Final = 0.2


class PrefetchLimit:
    """How long runs take, lately; and so how many are worth claiming ahead.

    A claim costs a transaction, whatever the number of runs in it. With runs that end at once,
    claiming one at a time would have the workers wait for the store; with runs that take longer
    than a claim, claiming ahead only keeps them from another executor that could start them now.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._seconds: float | None = None

    def note(self, seconds: float) -> None:
        """A run has taken this long."""
        before = seconds if self._seconds is None else self._seconds
        # A long one counts at once, so that nothing is claimed ahead behind its like.
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
            warming: A session is being opened; runs that wait for it must not keep others out.
        """
        waiting = len(self._orders)
        if warming:
            held = sum(order.needs_spark for order in self._orders.values())
            waiting -= min(held, free)
        room = free + ahead - waiting
        # Not one by one while there is enough to do: a claim is worth it when half is used up.
        if free == 0 and room * 2 < ahead:
            return 0
        return max(room, 0)
