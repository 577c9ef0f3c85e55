"""The DAGs that wait for a look, and the moments of the next looks.

A look is the scheduler's decision about one DAG: which runs to create now.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from itertools import islice


class ReadyQueue:
    """Ready DAGs, oldest first, in two queues that take turns.

    - The queue of events contains DAGs that became ready by an event, the end of a run or a change of the DAG.
    - The clock's queue contains DAGs that became ready by the clock.

    Because of the turns, a thousand DAGs that are due at midnight do not keep a new event waiting. A DAG that needs
    another look goes to the end of its queue.
    """

    def __init__(self) -> None:
        self._queues: tuple[dict[str, None], dict[str, None]] = ({}, {})
        self._turn = 0

    def __bool__(self) -> bool:
        return any(self._queues)

    def __contains__(self, dag_id: str) -> bool:
        return any(dag_id in queue for queue in self._queues)

    def add(self, dag_ids: Iterable[str], *, by_clock: bool = False) -> None:
        """Append the DAGs that are not ready yet."""
        queue = self._queues[by_clock]
        queue.update((dag_id, None) for dag_id in dag_ids if dag_id not in self)

    def add_first(self, dag_ids: Iterable[str], *, by_clock: bool) -> None:
        """Put DAGs back at the head of their queue, because they were taken and their due runs were not created."""
        first = [dag_id for dag_id in dag_ids if dag_id not in self]
        queue = self._queues[by_clock]
        others = list(queue)
        queue.clear()
        queue.update(dict.fromkeys((*first, *others)))

    def take(self, by_event: int, *, by_clock: int) -> tuple[list[str], bool]:
        """Take DAGs from the next queue that is not empty. Return the DAGs, and True if it was the clock's queue.

        Args:
            by_event: The most DAGs to take if it is the turn of the queue of events.
            by_clock: The most DAGs to take if it is the turn of the clock's queue.
        """
        if not self._queues[self._turn]:
            self._turn = 1 - self._turn
        turn, queue = self._turn, self._queues[self._turn]
        self._turn = 1 - turn
        taken = list(islice(queue, by_clock if turn else by_event))
        for dag_id in taken:
            del queue[dag_id]
        return taken, bool(turn)


class Alarms:
    """For each DAG, the moment at which it may become ready without an event, in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._moments: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def set(self, dag_id: str, moment: float | None) -> None:
        """Set the DAG's moment; None removes it."""
        if moment is None:
            self._moments.pop(dag_id, None)
        elif self._moments.get(dag_id) != moment:
            self._moments[dag_id] = moment
            heapq.heappush(self._heap, (moment, dag_id))
            if len(self._heap) > 2 * len(self._moments) + 100:
                self._heap = [(when, one) for one, when in self._moments.items()]
                heapq.heapify(self._heap)

    @property
    def next(self) -> float:
        """The earliest moment, or infinity."""
        self._drop_replaced()
        return self._heap[0][0] if self._heap else math.inf

    def take_due(self, now: float) -> list[str]:
        """Remove and return the DAGs whose moment has come, earliest first."""
        due = []
        while self.next <= now:
            _, dag_id = heapq.heappop(self._heap)
            del self._moments[dag_id]
            due.append(dag_id)
        return due

    def _drop_replaced(self) -> None:
        while self._heap and self._moments.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
