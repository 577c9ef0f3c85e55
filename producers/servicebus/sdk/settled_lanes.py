"""Which lanes of a call are settled, as the SDK's thread says."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from triggerer.abc import AdvanceItem


class SettledLanes:
    """What is still to be answered of one call. Made on the event loop, where it is waited for.

    Args:
        batches: One for each lane.
    """

    def __init__(self, batches: Sequence[Sequence[AdvanceItem]]) -> None:
        self._left = [len(batch) for batch in batches]
        """Of each batch; only the SDK's thread counts down, also the next."""
        self._lanes_left = sum(1 for left in self._left if left)
        self._settled: deque[int] = deque()
        self._loop = asyncio.get_running_loop()
        self._is_over = asyncio.Event()
        if not self._lanes_left:
            self._is_over.set()

    def mark_settled(self, place: int) -> None:
        """One message of this batch is settled, or cannot be any more; in the SDK's thread, where all are answered."""
        self._left[place] -= 1
        if self._left[place]:
            return
        self._settled.append(place)
        self._lanes_left -= 1
        if not self._lanes_left and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._is_over.set)

    def take_settled(self) -> list[int]:
        """The places of the lanes that are, each once."""
        return [self._settled.popleft() for _ in range(len(self._settled))]

    async def wait(self) -> None:
        """Return when all are settled."""
        await self._is_over.wait()
