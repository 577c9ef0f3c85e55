"""The ends of a log's lanes. Callers that need them at nearly the same time share one look-up."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from datetime import UTC, datetime
from typing import Final

import anyio

from triggerer.abc import SharedStreamProducer
from triggerer.domain.watchers.lane_positions import Position
from triggerer.streams.cancellation import plugin_code
from triggerer.streams.clock import Clock

_END_OF_TIME: Final = datetime(9999, 1, 1, tzinfo=UTC)


class LaneEnds:
    """The ends of all lanes, from the last look-up of one group's producer."""

    def __init__(self) -> None:
        self.looked_up_at = -math.inf
        """When the last look-up began, by the monotonic clock. Later messages may be after these ends."""
        self._ends: Mapping[Hashable, Position] = {}
        self._lock = anyio.Lock()

    async def find(
        self, producer: SharedStreamProducer, clock: Clock, *, after: float
    ) -> Mapping[Hashable, Position]:
        """Return the end of each lane, from a look-up that began after the monotonic time `after`.

        Raises:
            Exception: The producer's error. The next caller calls the producer again.
        """
        async with self._lock:
            if self.looked_up_at <= after:
                began = clock.monotonic()
                self._ends = await find_positions(producer, _END_OF_TIME)
                self.looked_up_at = began
        return self._ends


def tells_positions(producer: type[SharedStreamProducer]) -> bool:
    """Whether the class overrides `find_positions`."""
    return producer.find_positions is not SharedStreamProducer.find_positions


async def find_positions(
    producer: SharedStreamProducer, start: datetime | None
) -> Mapping[Hashable, Position]:
    """See `SharedStreamProducer.find_positions`; empty if the class does not override it."""
    if not tells_positions(type(producer)):
        return {}
    with plugin_code(f"find_positions() of {type(producer).__qualname__}"):
        return await producer.find_positions(start)
