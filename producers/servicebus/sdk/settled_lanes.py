"""Reports to the event loop which lanes the SDK's thread has settled, for one call of `advance_lanes`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from triggerer.abc import AdvanceItem


class SettledLanes:
    """Counts the unsettled messages of one call of `advance_lanes`.

    It is created and awaited on the runtime's event loop, not in the SDK's thread.

    Args:
        batches: The items of each lane.
    """

    def __init__(self, batches: Sequence[Sequence[AdvanceItem]]) -> None:
        self._left = [len(batch) for batch in batches]
        """The unsettled messages of each batch. Only the SDK's thread changes this and `_lanes_left`."""
        self._lanes_left = sum(1 for left in self._left if left)
        self._settled: deque[int] = deque()
        self._loop = asyncio.get_running_loop()
        self._is_over = asyncio.Event()
        if not self._lanes_left:
            self._is_over.set()

    def mark_settled(self, place: int) -> None:
        """Record that a message of a batch is settled, or cannot be settled. Called in the SDK's thread."""
        self._left[place] -= 1
        if self._left[place]:
            return
        self._settled.append(place)
        self._lanes_left -= 1
        if not self._lanes_left and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._is_over.set)

    def take_settled(self) -> list[int]:
        """Return the indices of newly settled lanes, each once."""
        return [self._settled.popleft() for _ in range(len(self._settled))]

    async def wait(self) -> None:
        """Return when all lanes are settled."""
        await self._is_over.wait()
