"""The DAGs that wait to be looked at, and when to look at others again."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from itertools import islice


class ReadyQueue:
    """DAGs in the order in which they became ready, in two lanes that take turns.

    One lane has those that an event, the end of a run or a change of the DAG has made ready, the other those that the
    clock has. However many DAGs the clock makes due at all times, an event's DAG waits for no more than the transaction
    under way, one of the other lane, and its own lane's DAGs that were ready before it; and the other way round. A DAG
    that is not done goes behind all that are ready.
    """

    def __init__(self) -> None:
        self._lanes: tuple[dict[str, None], dict[str, None]] = ({}, {})
        self._turn = 0

    def __bool__(self) -> bool:
        return any(self._lanes)

    def __contains__(self, dag_id: str) -> bool:
        return any(dag_id in lane for lane in self._lanes)

    def add(self, dag_ids: Iterable[str], *, by_clock: bool = False) -> None:
        """Append those that are not there yet."""
        lane = self._lanes[by_clock]
        lane.update((dag_id, None) for dag_id in dag_ids if dag_id not in self)

    def add_first(self, dag_ids: Iterable[str], *, by_clock: bool) -> None:
        """Put those first that should have been served and were not."""
        first = [dag_id for dag_id in dag_ids if dag_id not in self]
        lane = self._lanes[by_clock]
        others = list(lane)
        lane.clear()
        lane.update(dict.fromkeys((*first, *others)))

    def take(self, by_event: int, *, by_clock: int) -> tuple[list[str], bool]:
        """Take up to so many of the lane whose turn it is; return them, and whether it is that of the clock."""
        if not self._lanes[self._turn]:
            self._turn = 1 - self._turn
        turn, lane = self._turn, self._lanes[self._turn]
        self._turn = 1 - turn
        taken = list(islice(lane, by_clock if turn else by_event))
        for dag_id in taken:
            del lane[dag_id]
        return taken, bool(turn)


class Alarms:
    """For each DAG the moment at which time alone may make it ready; by a monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._moments: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def set(self, dag_id: str, moment: float | None) -> None:
        """Set it; None: there is none."""
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
        """The first moment; infinite: there is none."""
        self._drop_replaced()
        return self._heap[0][0] if self._heap else math.inf

    def take_due(self, now: float) -> list[str]:
        """Take the DAGs whose moment has come, the earliest first."""
        due = []
        while self.next <= now:
            _, dag_id = heapq.heappop(self._heap)
            del self._moments[dag_id]
            due.append(dag_id)
        return due

    def _drop_replaced(self) -> None:
        while self._heap and self._moments.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
