"""Synchronization primitives that anyio lacks: its events cannot be reset, and would be made anew for each wait.

All methods belong to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import math

import anyio
from anyio.lowlevel import checkpoint


class AutoResetEvent:
    """An event that one task waits for again and again: it is reset each time that `wait` returns.

    Setting it before anybody waits is not lost; setting it several times counts once.
    """

    __slots__ = ("_waiter", "is_set")

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None
        self.is_set = False

    def set(self) -> None:
        """Let the waiting task go on, or the next one that waits."""
        self.is_set = True
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            _resolve(waiter)

    def clear(self) -> None:
        self.is_set = False

    async def wait(self) -> None:
        """Wait until it is set, and reset it. Always a checkpoint; where that costs too much, see `is_set` first.

        Cancellation: It stays set if it was.
        """
        if self.is_set:
            await checkpoint()
        while not self.is_set:
            self._waiter = waiter = asyncio.get_running_loop().create_future()
            await waiter
        self.is_set = False

    async def wait_for(self, seconds: float) -> bool:
        """Like `wait`, but for so long at most; return whether it was set.

        It takes a timer, and no cancel scope: those were a tenth of what the event loop did for a message.
        """
        if self.is_set or seconds == math.inf:
            await self.wait()
            return True
        loop = asyncio.get_running_loop()
        self._waiter = waiter = loop.create_future()
        timer = loop.call_later(max(seconds, 0.0), _resolve, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
        was_set, self.is_set = self.is_set, False
        return was_set


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Notifier:
    """Wakes all tasks that wait for it at that moment; remembers nothing, so that each checks its condition in a loop.

    ```
    while not self.has_room:
        await self.changed.wait()
    ```
    """

    __slots__ = ("_next",)

    def __init__(self) -> None:
        # Only while somebody waits: notifying nobody costs next to nothing.
        self._next: anyio.Event | None = None

    def notify_all(self) -> None:
        if self._next is not None:
            self._next.set()
            self._next = None

    async def wait(self) -> None:
        """Return after the next `notify_all`."""
        if self._next is None:
            self._next = anyio.Event()
        await self._next.wait()
