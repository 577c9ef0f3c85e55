"""A wrong `TakenMessages.move`, for the mutations that need one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from triggerer.streams.catchup.backlogs.backlog import Lag
from triggerer.streams.catchup.processing.in_flight import TakenFromLane, TakenMessages


def moving_past(is_passed: Callable[[TakenFromLane], bool]) -> Iterator[tuple[object, object]]:
    """Yield a wrong `move`: it moves past the messages that the predicate names, although they are not resolved."""
    right = TakenMessages.move

    def move(self: TakenMessages, lag: Lag) -> bool:
        taken = [one for one in self._by_lane.get(lag, ()) if is_passed(one)]
        unresolved = [one.unresolved for one in taken]
        for one in taken:
            one.unresolved = 0
        has_derived = right(self, lag)
        for one, count in zip(taken, unresolved, strict=True):
            one.unresolved = count
        return has_derived

    yield right, move
