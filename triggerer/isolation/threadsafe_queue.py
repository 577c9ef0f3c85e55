"""From any thread to a task of one event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Generic, TypeVar

import anyio

T = TypeVar("T")


class ThreadsafeQueue(Generic[T]):
    """Takes items from any thread, gives them in order to one task of the loop that it was made on.

    The loop is woken once for all that comes before it gets to look: under load that is a chunk. Not bounded: those
    who put bound what they put.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: deque[T] = deque()
        self._is_signalled = False
        self._arrived = anyio.Event()

    def put(self, item: T) -> None:
        """Never blocks; where the loop has been closed, nobody will read it."""
        self._items.append(item)
        # Set when the reader is going to look anyway. It is reset before it looks, so that nothing is overlooked.
        if not self._is_signalled:
            self._is_signalled = True
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._signal)

    def _signal(self) -> None:
        self._is_signalled = False
        self._arrived.set()

    async def get(self) -> T:
        """Wait for the next item; for one task at a time.

        Cancellation: nothing is lost.
        """
        while not self._items:
            self._arrived = anyio.Event()
            if not self._items:
                await self._arrived.wait()
        return self._items.popleft()

    def take_all(self) -> list[T]:
        """What is there now, without waiting."""
        taken: list[T] = []
        while self._items:
            taken.append(self._items.popleft())
        return taken
