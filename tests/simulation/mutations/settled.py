"""A wrong `MessagesInFlight.move`, for the mutations that need one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from triggerer.streams.catchup.backlogs.backlog import Backlog
from triggerer.streams.catchup.processing.in_flight import LaneMessageInFlight, MessagesInFlight


def moving_past(
    is_passed: Callable[[LaneMessageInFlight], bool],
) -> Iterator[tuple[object, object]]:
    """Yield the right `move`, and a wrong one that also moves past unresolved messages if `is_passed` is True."""
    right = MessagesInFlight.move

    def move(self: MessagesInFlight, backlog: Backlog) -> bool:
        in_flight = [one for one in self._by_lane.get(backlog, ()) if is_passed(one)]
        unresolved = [one.unresolved for one in in_flight]
        for one in in_flight:
            one.unresolved = 0
        has_derived = right(self, backlog)
        for one, count in zip(in_flight, unresolved, strict=True):
            one.unresolved = count
        return has_derived

    yield right, move
