"""A queue that any thread may fill, and that one task of an event loop reads."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Generic, TypeVar

from triggerer.synchronization import AutoResetEvent

T = TypeVar("T")


class ThreadsafeQueue(Generic[T]):
    """A queue for items from any thread. Create the queue on the event loop whose task reads the items.

    Several items that arrive before the task reads wake the loop only once. The queue has no bound, so the callers of
    `put` must limit their items.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: deque[T] = deque()
        self._is_signalled = False
        self._arrived = AutoResetEvent()

    def put(self, item: T) -> None:
        """Add an item without blocking. If the loop is closed already, nobody reads the item."""
        self._items.append(item)
        # While a signal is under way, no second signal is needed. `_signal` resets `_is_signalled` before the
        # reader takes items, so the reader finds this item too.
        if not self._is_signalled:
            self._is_signalled = True
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._signal)

    def _signal(self) -> None:
        self._is_signalled = False
        self._arrived.set()

    async def get(self) -> T:
        """Wait for the next item. Only one task may wait at a time.

        Cancellation: No item is lost.
        """
        while not self._items:
            await self._arrived.wait()
        return self._items.popleft()

    def take_all(self) -> list[T]:
        """Return the items that the queue has now, without waiting."""
        items: list[T] = []
        while self._items:
            items.append(self._items.popleft())
        return items
