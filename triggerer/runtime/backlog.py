"""What was handed to the store and is not answered yet, and its bound."""

from __future__ import annotations

import anyio


class Backlog:
    """Counts the events of one stream, or of one trigger without a stream, that the store still holds.

    It outlives groups and restarts: while the store is away, neither an ack timeout nor a redelivery makes room.
    """

    def __init__(self, limit: int) -> None:
        self.count = 0
        self.is_full = False
        """Whether filters are to pause; somebody who is paused waits with `wait_for_room`."""
        self._limit = limit
        self._is_closed = False
        self._changed: anyio.Event | None = None

    def add(self) -> None:
        """One event was submitted."""
        self.count += 1
        if self.count >= self._limit:
            self.is_full = True

    def remove(self) -> None:
        """The store answered for one."""
        self.count -= 1
        if self.is_full and self.count < self._limit:
            self.is_full = self._is_closed
        if self._changed is not None and (not self.count or not self.is_full):
            self._changed.set()
            self._changed = None

    def close(self) -> None:
        """Let whoever waits for room wait until it is cancelled: the service is stopping."""
        self._is_closed = self.is_full = True

    async def wait_for_room(self) -> None:
        while self.is_full:
            await self._next_change()

    async def wait_until_empty(self) -> None:
        while self.count:
            await self._next_change()

    async def _next_change(self) -> None:
        if self._changed is None:
            self._changed = anyio.Event()
        await self._changed.wait()
